"""Rows cut into sequences: a sequence is the own tokens of one thread, after the context that they were sampled in.

Estimators see a rollout as one row. A forward pass sees each of its threads as a sequence, whose prompt is the thread's
context. So every token is in one sequence, and is trained in the thread that sampled it. A row of one thread is its
own sequence: nothing is copied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ramet.policy.batching.rows import Floats, Row

Places: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Threads:
    """The sequences of some rows, in order of rows and threads."""

    rows: Sequence[Row]  # one for each sequence
    rollouts: Sequence[int]  # of each sequence: the index of its row
    places: Sequence[Places | None]  # of each sequence: where its tokens are on its row's response; None: it is all

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Threads:
        sequences, rollouts, places = [], [], []
        for index, row in enumerate(rows):
            for sequence, place in _sequences(row):
                sequences.append(sequence)
                rollouts.append(index)
                places.append(place)
        return cls(sequences, rollouts, places)

    def cut(self, values: Sequence[Floats]) -> list[Floats]:
        """Values of the rows, `[T]` each, as values of the sequences; empty if there are none yet."""
        if not values:
            return []
        return [
            values[row] if place is None else values[row][place]
            for row, place in zip(self.rollouts, self.places, strict=True)
        ]

    def join(self, values: Sequence[Floats]) -> list[Floats]:
        """The inverse of `cut`; empty if `values` is, as on ranks after the first."""
        if not values:
            return []
        joined: list[Floats] = []
        lengths = Counter[int]()
        for row, sequence in zip(self.rollouts, self.rows, strict=True):
            lengths[row] += len(sequence.response_ids)
        for row, place, value in zip(self.rollouts, self.places, values, strict=True):
            if place is None:
                joined.append(value)
                continue
            if row == len(joined):  # its first thread
                joined.append(np.zeros(lengths[row], value.dtype))
            joined[row][place] = value
        return joined


def _sequences(row: Row) -> list[tuple[Row, Places | None]]:
    if row.thread_ids is None:
        return [(row, None)]
    found: list[tuple[Row, Places | None]] = []
    for thread, context in enumerate((row.prompt_ids, *row.contexts)):
        place = np.flatnonzero(row.thread_ids == thread)
        sequence = replace(
            row,
            prompt_ids=context,
            response_ids=row.response_ids[place],
            mask=row.mask[place],
            engine_logprobs=row.engine_logprobs[place],
            entropies=None if row.entropies is None else row.entropies[place],
            turn_ids=row.turn_ids[place],
            node_ids=row.node_ids[place],
            policy_versions=row.policy_versions[place],
            thread_ids=None,
            contexts=(),
            token_rewards={},
        )
        found.append((sequence, place))
    return found
