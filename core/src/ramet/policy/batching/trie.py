"""The token trie of sequences: every prefix that several of them begin with exists once.

Sequences in lexicographic order are a depth-first walk of their trie. Each adds a *run*: the tokens after the prefix
that it shares with the one before it. Every token of the trie is in exactly one run. So no node is ever made. A run is
a chain, however many sequences fork off it later, and what its tokens attend to is the path before them and the run
itself. A sequence that is a prefix of the one before it, or equal to it, adds no run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ramet.policy.batching.rows import Ids

Positions: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trie:
    """Each field has one number per sequence, in the order of the walk."""

    order: tuple[int, ...]  # indices of the sequences
    lengths: tuple[int, ...]
    shared: tuple[int, ...]  # tokens that it has in common with the one before it

    @property
    def n_tokens(self) -> int:
        """Unique tokens of all runs."""
        return sum(self.lengths) - sum(self.shared)

    @property
    def n_pairs(self) -> int:
        """Number of pairs of a unique token and a token that it attends to: itself and its path."""
        return sum(_triangle(end) - _triangle(start) for start, end in zip(self.shared, self.lengths, strict=True))

    @property
    def n_keys(self) -> int:
        """The tokens that are gathered for attention: the path of every run, itself included."""
        return sum(length for shared, length in zip(self.shared, self.lengths, strict=True) if length > shared)

    def positions(self) -> list[Positions]:
        """Positions of each sequence's tokens when all runs follow one another, in the order of the walk."""
        all_positions: list[Positions] = []
        start = 0
        for shared, length in zip(self.shared, self.lengths, strict=True):
            path = all_positions[-1][:shared] if all_positions else np.zeros(0, np.int64)
            end = start + length - shared
            all_positions.append(np.concatenate([path, np.arange(start, end)]))
            start = end
        return all_positions

    def cut(self, budget: int, most_keys: float = math.inf) -> list[Trie]:
        """Consecutive parts of the walk, each the trie of its own sequences, of at most `budget` unique tokens and
        `most_keys` of them gathered.

        A prefix that two parts share is in both. A sequence over the budget is a separate part, with the sequences that
        add nothing to it.
        """
        parts: list[list[tuple[int, int, int]]] = []  # (index, length, shared) of each sequence
        room, keys = 0, 0.0  # that are left
        for index, length, shared in zip(self.order, self.lengths, self.shared, strict=True):
            added = length - shared
            if parts and (not added or (added <= room and length <= keys)):
                parts[-1].append((index, length, shared))
                room, keys = room - added, keys - (length if added else 0)
            else:
                parts.append([(index, length, 0)])
                room, keys = budget - length, most_keys - length
        walks = (zip(*part, strict=True) for part in parts)
        return [Trie(order=order, lengths=lengths, shared=shared) for order, lengths, shared in walks]


def trie(sequences: Sequence[Ids]) -> Trie:
    """Return the trie of sequences of token ids, none below 0. Equal sequences keep their order."""
    # Big-endian bytes of such numbers compare as the numbers do.
    keys = [sequence.astype(">i4").tobytes() for sequence in sequences]
    order = sorted(range(len(sequences)), key=keys.__getitem__)
    ordered = [sequences[i] for i in order]
    shared = [_n_common(a, b) for a, b in pairwise(ordered)]
    return Trie(order=tuple(order), lengths=tuple(map(len, ordered)), shared=(0, *shared) if ordered else ())


def _n_common(first: Ids, second: Ids) -> int:
    """Length of the longest common prefix."""
    n = min(len(first), len(second))
    differs = first[:n] != second[:n]
    return int(differs.argmax()) if differs.any() else n


def _triangle(n: int) -> int:
    return n * (n + 1) // 2
