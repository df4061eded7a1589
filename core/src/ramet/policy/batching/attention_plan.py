"""Attention over a packed row of runs (`batching/trie.py`): which positions see which, in a few calls of a kernel.

The queries of a run are its own tokens, its keys the path before it and itself, causal and aligned to the lower right:
the last query sees all keys. Runs of similar sizes share a call, padded. Where the path is empty the sizes are equal,
and a kernel's own causal mask serves, with the padding after the run. Otherwise padding is before queries and keys, so
that they stay aligned, and a mask hides it.

Masks are as large as the computed scores, so they are made for one pass at a time (`AttentionCall.seen`), and a plan
has only indices.

Shapes: a call of n runs has Q queries and K keys for each, as many as the largest has; S positions on the packed row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramet.policy.batching.trie import Positions
from ramet.policy.host_memory import sent

Mask: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens that no sequence before had, at the end of their path."""

    path: Positions  # [k] positions on the packed row of all tokens up to the run's last
    n_own: int  # the last so many of them are the run

    @property
    def n_pairs(self) -> int:
        return self.n_own * len(self.path)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call of a kernel, for n runs. Where Q = K, a query sees the keys up to it."""

    n_runs: int
    n_queries: int  # Q
    n_keys: int  # K
    sizes: Tensor | None  # [2, n]: how many of the Q are the run, and of the K its path, at their ends; None: all

    def seen(self, device: torch.device) -> Tensor | None:
        """The keys of each query: `[n, 1, Q, K]` bool, `[1, 1, Q, K]` if all runs have the same; None where Q = K."""
        if self.n_queries == self.n_keys:
            return None
        query = torch.arange(self.n_queries, device=device)[:, None]
        key = torch.arange(self.n_keys, device=device)
        aligned = (key <= query + (self.n_keys - self.n_queries))[None, None]
        if self.sizes is None:
            return aligned
        own_sizes, path = self.sizes[:, :, None, None, None].unbind()
        # Queries of padding see the keys before them, since a softmax over nothing is not a number.
        real = (key >= self.n_keys - path) | (query < self.n_queries - own_sizes)
        return aligned & real


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """Indices of the gathered inputs of all calls, one after another, and of their results. S: positions of the packed
    row.

    Every position is a query in one of the calls, once.
    """

    calls: tuple[AttentionCall, ...]
    queries: Tensor  # [sum of n * Q] positions on the packed row; padding has 0, which exists in every row
    keys: Tensor  # [sum of n * K] as well
    results: Tensor  # [S] of each position: its index in `queries`
    # For kernels that take sequences of different lengths: the R runs are the packed row, one after another.
    paths: Tensor  # [sum of k] positions of every run's path, in their order
    starts: Tensor  # [R + 1] int32: where each run begins on the packed row; the last is S
    path_starts: Tensor  # [R + 1] int32: where its path begins in `paths`
    longest: int  # of the runs
    longest_path: int
    # For kernels that take a rule of visible keys: the position after the last that has this one in its path. All that
    # are in between have it too.
    ends: Tensor  # [S] int32

    def to(self, device: torch.device) -> AttentionPlan:
        return AttentionPlan(
            calls=tuple(
                call if call.sizes is None else replace(call, sizes=sent(call.sizes, device)) for call in self.calls
            ),
            queries=sent(self.queries, device),
            keys=sent(self.keys, device),
            results=sent(self.results, device),
            paths=sent(self.paths, device),
            starts=sent(self.starts, device),
            path_starts=sent(self.path_starts, device),
            longest=self.longest,
            longest_path=self.longest_path,
            ends=sent(self.ends, device),
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """A call and its indices."""

    call: AttentionCall
    queries: Positions  # [n, Q]
    keys: Positions  # [n, K]
    real: Mask  # [n, Q] queries without padding


def attention_plan(runs: Sequence[Run], *, call_pairs: float) -> AttentionPlan:
    """Plan the runs in their order on the packed row. `call_pairs`: so many pairs of padding cost as much as a call."""
    whole = [run for run in runs if run.n_own == len(run.path)]
    others = [run for run in runs if run.n_own < len(run.path)]
    parts = [_causal_call(alike) for alike in _similar(whole, call_pairs)]
    parts += [_masked_call(alike) for alike in _similar(others, call_pairs)]
    queries = np.concatenate([part.queries.ravel() for part in parts])
    real = np.flatnonzero(np.concatenate([part.real.ravel() for part in parts]))
    results = np.zeros(len(real), np.int64)
    results[queries[real]] = real
    return AttentionPlan(
        calls=tuple(part.call for part in parts),
        queries=torch.from_numpy(queries),
        keys=torch.from_numpy(np.concatenate([part.keys.ravel() for part in parts])),
        results=torch.from_numpy(results),
        paths=torch.from_numpy(np.concatenate([run.path for run in runs])),
        starts=_borders([run.n_own for run in runs]),
        path_starts=_borders([len(run.path) for run in runs]),
        longest=max(run.n_own for run in runs),
        longest_path=max(len(run.path) for run in runs),
        ends=_ends(runs, len(results)),
    )


def _ends(runs: Sequence[Run], n_positions: int) -> Tensor:
    ends = np.zeros(n_positions, np.int32)
    for run in runs:  # in the order of the walk: the last that has a position in its path is the one that stays
        ends[run.path] = run.path[-1] + 1
    return torch.from_numpy(ends)


def _borders(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


class _Bin:
    """Runs that share a call."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._queries = self._keys = 0

    def padding_of(self, run: Run) -> int:
        """Pairs that are computed for nothing if this run comes in."""
        now = len(self.runs) * self._queries * self._keys
        then = (len(self.runs) + 1) * max(self._queries, run.n_own) * max(self._keys, len(run.path))
        return then - now - run.n_pairs

    def add(self, run: Run) -> None:
        self.runs.append(run)
        self._queries, self._keys = max(self._queries, run.n_own), max(self._keys, len(run.path))


def _similar(runs: Sequence[Run], call_pairs: float) -> list[list[Run]]:
    """Largest first, each to the call where it brings least padding, or to a new one if that is cheaper."""
    bins: list[_Bin] = []
    for run in sorted(runs, key=lambda run: -run.n_pairs):
        best = min(bins, key=lambda candidate: candidate.padding_of(run), default=None)
        if best is None or best.padding_of(run) > call_pairs:
            best = _Bin()
            bins.append(best)
        best.add(run)
    return [filled.runs for filled in bins]


def _causal_call(runs: Sequence[Run]) -> _Call:
    """Return the call for runs without a path: queries are keys, and no position sees the padding after it."""
    width = max(run.n_own for run in runs)
    index = np.zeros((len(runs), width), np.int64)
    for row, run in zip(index, runs, strict=True):
        row[: run.n_own] = run.path
    real = np.arange(width) < np.array([[run.n_own] for run in runs])
    return _Call(AttentionCall(len(runs), width, width, sizes=None), index, index, real)


def _masked_call(runs: Sequence[Run]) -> _Call:
    n_queries, n_keys = max(run.n_own for run in runs), max(len(run.path) for run in runs)
    queries, keys = (np.zeros((len(runs), size), np.int64) for size in (n_queries, n_keys))
    for query, key, run in zip(queries, keys, runs, strict=True):
        query[n_queries - run.n_own :] = run.path[-run.n_own :]
        key[n_keys - len(run.path) :] = run.path
    sizes = np.array([[run.n_own for run in runs], [len(run.path) for run in runs]])
    real = np.arange(n_queries) >= n_queries - sizes[0][:, None]
    padded = bool((sizes != [[n_queries], [n_keys]]).any())
    call = AttentionCall(len(runs), n_queries, n_keys, torch.from_numpy(sizes) if padded else None)
    return _Call(call, queries, keys, real)
