"""The claims of an evaluation: avg@k with an interval that knows about tasks, unbiased pass@k, and maj@k.

Rollouts of one task are not independent, so the task is the unit: avg@k is the mean of the tasks' own means, and its
standard error comes from the spread of those means (the clustered standard error of Miller 2024, arXiv 2411.00640, with
the small-sample factor T/(T-1) and Student's t). pass@k is eq. 1 of Chen et al. 2021, arXiv 2107.03374. A rollout that
was masked or not judged is None: it is left out and counted, never a failure. Since long rollouts are what a deadline
masks, what is left may be a biased sample: `bounds` say what avg@k would be with the missing ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

Answers = Mapping[str, Sequence[str | None]]  # task id -> the answer of each rollout
Scores = Mapping[str, Sequence[float | None]]  # task id -> one score per rollout; None: masked or not judged
CONFIDENCE = 0.95
CORRECT = 1.0 - 1e-9  # a rollout passes if its score is the maximum of a metric in [0, 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over tasks with its 95 % confidence interval `mean ± half_width`; None where it cannot be known."""

    mean: float | None  # None: no task had a valid rollout
    standard_error: float | None  # None: fewer than two tasks
    half_width: float | None
    n_tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassAtK:
    """pass@k over the tasks with at least k valid rollouts; the others are named, not counted."""

    k: int
    estimate: Estimate
    short_tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSummary:
    """One metric of one benchmark: `n_judged` of `n_rollouts` have a score."""

    metric: str
    k: int  # rollouts asked for per task
    avg: Estimate
    passes: tuple[PassAtK, ...]
    maj: Estimate  # of the commonest answer
    n_rollouts: int
    n_judged: int
    n_tasks: int
    unjudged_tasks: tuple[str, ...]  # tasks without any score
    bounds: tuple[float, float] | None = None  # avg@k if rollouts without a score were wrong, right; None: all have one


def summarise(metric: str, scores: Scores, answers: Answers, *, k: int, pass_at: Sequence[int] = ()) -> MetricSummary:
    """avg@k, maj@k, and pass@j for the j of `pass_at`; without any, for every power of two below k and for k itself."""
    wanted = sorted(set(pass_at)) or powers_of_two(k)
    return MetricSummary(
        metric=metric,
        k=k,
        avg=avg_at_k(scores),
        passes=tuple(pass_at_k(scores, j) for j in wanted),
        maj=maj_at_k(scores, answers),
        n_rollouts=sum(len(row) for row in scores.values()),
        n_judged=sum(len(_valid(row)) for row in scores.values()),
        n_tasks=len(scores),
        unjudged_tasks=tuple(task for task, row in scores.items() if not _valid(row)),
        bounds=_bounds(scores),
    )


def _bounds(scores: Scores) -> tuple[float, float] | None:
    """The means over tasks with 0 and with 1, the ends of a metric, in the place of every missing score."""
    if all(score is not None for row in scores.values() for score in row):
        return None
    low, high = (
        fmean(fmean(missing if score is None else score for score in row) for row in scores.values())
        for missing in (0.0, 1.0)
    )
    return low, high


def avg_at_k(scores: Scores) -> Estimate:
    """The mean of the tasks' mean scores; each task counts once however many of its rollouts are valid."""
    return over_tasks([fmean(valid) for row in scores.values() if (valid := _valid(row))])


def pass_at_k(scores: Scores, k: int) -> PassAtK:
    """The chance that at least one of k rollouts is right, from the n >= k valid ones of each task."""
    values, short = [], []
    for task, row in scores.items():
        valid = _valid(row)
        if len(valid) < k:
            short.append(task)
        else:
            values.append(pass_probability(len(valid), sum(score >= CORRECT for score in valid), k))
    return PassAtK(k=k, estimate=over_tasks(values), short_tasks=tuple(short))


def maj_at_k(scores: Scores, answers: Answers) -> Estimate:
    """The mean score of each task's commonest answer among its judged rollouts (Wang et al. 2022, arXiv 2203.11171).

    Answers are the same if they are so without case and surplus space. Rollouts without an answer do not vote; of
    answers that are equally common the mean counts. A task without any answer has the mean of its scores.
    """
    return over_tasks([vote for task, row in scores.items() if (vote := _vote(row, answers[task])) is not None])


def _vote(row: Sequence[float | None], answers: Sequence[str | None]) -> float | None:
    """Score of the majority's answer; None if nothing was judged."""
    votes: dict[str | None, list[float]] = {}
    for score, answer in zip(row, answers, strict=True):
        if score is not None:
            votes.setdefault(None if answer is None else " ".join(answer.casefold().split()), []).append(score)
    named = [scores for answer, scores in votes.items() if answer is not None] or list(votes.values())
    if not named:
        return None
    most = max(map(len, named))
    return fmean(fmean(scores) for scores in named if len(scores) == most)


def powers_of_two(k: int) -> list[int]:
    """Return the powers of two up to k, and k."""
    return sorted({2**i for i in range(k.bit_length()) if 2**i <= k} | {k})


def pass_probability(n: int, c: int, k: int) -> float:
    """1 - C(n-c, k) / C(n, k): the share of k-subsets of n rollouts, c of them right, that hold a right one."""
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def over_tasks(values: Sequence[float]) -> Estimate:
    """The mean of one value per task, with its interval."""
    n = len(values)
    if n < 2:
        return Estimate(mean=values[0] if values else None, standard_error=None, half_width=None, n_tasks=n)
    mean = fmean(values)
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n * (n - 1)))
    return Estimate(mean=mean, standard_error=error, half_width=student_t(n - 1) * error, n_tasks=n)


@functools.cache  # every metric of an evaluation asks for the same one
def student_t(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The two-sided quantile: |t| stays below it with probability `confidence`. Found by bisection.

    `scipy.stats.t.ppf` gives the same, but would be the only need of scipy.
    """
    low, high = 0.0, 1e4
    if freedom > 10000:  # equal to three decimals there
        return NormalDist().inv_cdf(0.5 + confidence / 2)
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_within(middle, freedom) < confidence else (low, middle)
    return high


def t_within(t: float, freedom: int) -> float:
    """P(|T| <= t) for integer degrees of freedom: the finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2 == 1
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for i in range(2 if odd else 1, freedom, 2):
        total += term
        term *= i / (i + 1) * math.cos(angle) ** 2
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


def _valid(row: Sequence[float | None]) -> list[float]:
    return [score for score in row if score is not None]
