"""Rank correlation with a bootstrap interval over tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROUNDS = 1000
Pairs = Sequence[tuple[float, float]]  # (estimate, truth) of calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """Spearman's, with its 95 % interval; None where all estimates are equal."""

    mean: float | None
    low: float | None
    high: float | None
    n_calls: int

    def __str__(self) -> str:
        if self.mean is None or self.low is None or self.high is None:
            return "none: all equal"
        return f"{self.mean:.2f} ({self.low:.2f}-{self.high:.2f})"


def correlation(by_task: Mapping[str, Pairs], seed: int) -> Correlation:
    """Return the correlation over the calls of all tasks; tasks are drawn again for the interval."""
    tasks = [np.array(pairs, np.float64) for pairs in by_task.values() if pairs]
    every = np.concatenate(tasks)
    mean = spearman(every)
    if mean is None:
        return Correlation(mean=None, low=None, high=None, n_calls=len(every))
    rng = np.random.default_rng(seed)
    drawn = [
        found
        for _ in range(ROUNDS)
        if (found := spearman(np.concatenate([tasks[i] for i in rng.integers(len(tasks), size=len(tasks))])))
        is not None
    ]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Correlation(mean=mean, low=float(low), high=float(high), n_calls=len(every))


def spearman(pairs: NDArray[np.float64]) -> float | None:
    """Pearson's correlation of the ranks; equal numbers have the mean of their ranks."""
    ranks = [_ranks(pairs[:, column]) for column in range(2)]
    if any(np.ptp(column) == 0 for column in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values are rounded: the same number must be the same whatever the order of a sum."""
    _, inverse, counts = np.unique(np.round(values, 9), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: NDArray[np.float64] = last - (counts - 1) / 2
    return means[inverse]
