"""Rows of groups: drawn ones of a given shape, or those of a run's records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ramet.policy.batching.rows import Ids, Row, rows_of
from ramet.rollout.record import read_records
from ramet.testing.batches import root_row

VOCABULARY = 512
SPREAD = 0.3  # responses are so much shorter or longer than the mean


@dataclass(frozen=True, slots=True)
class Shape:
    """Groups of rollouts; forks begin in the middle of another rollout, as after a tool result."""

    name: str
    hidden: int  # of the model, which has 4 layers
    n_groups: int
    n_rollouts: int
    n_forks: int  # of these
    prompt: int  # tokens
    response: int  # tokens on average

    def rows(self, seed: int) -> list[Row]:
        rng = np.random.default_rng(seed)
        return [row for group in range(self.n_groups) for row in self._group(group, rng)]

    def _group(self, number: int, rng: np.random.Generator) -> list[Row]:
        prompt = rng.integers(0, VOCABULARY, self.prompt).astype(np.int32)
        responses: list[Ids] = []
        for i in range(self.n_rollouts):
            own = rng.integers(0, VOCABULARY, self._length(rng)).astype(np.int32)
            if i >= self.n_rollouts - self.n_forks:
                parent = responses[int(rng.integers(len(responses)))]
                at = min(int(len(parent) * rng.uniform(0.3, 0.7)), len(own) - 1)
                own[:at] = parent[:at]
            responses.append(own)
        return [root_row(prompt, response, group=number) for response in responses]

    def _length(self, rng: np.random.Generator) -> int:
        return int(self.response * rng.uniform(1 - SPREAD, 1 + SPREAD))


def recorded(folder: Path) -> list[Row]:
    """Of the last step that a run has recorded (`RUN/rollouts`)."""
    last = max(folder.glob("step_*.jsonl*"))
    return rows_of([record.group for record in read_records(last)])
