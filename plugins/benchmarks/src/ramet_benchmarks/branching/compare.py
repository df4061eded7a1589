"""Statistics over the seeds of stored runs: means with intervals, paired differences, and what could be detected.

The seed is the unit: all arms of a seed have the same checkpoint and tasks, so they are compared within seeds.
Intervals are Student's t at 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, stdev
from typing import Any

from ramet.evaluate.statistics import student_t, t_within

Run = Mapping[str, Any]  # the numbers of `runs.run`
POWER = 0.8
COSTS = {  # what a curve is drawn over -> the metric of a step that is summed up
    "rollouts": "rollout/rollouts",
    "sampled tokens": "rollout/executed_sampled_tokens",
    "executed tool calls": "rollout/executed_tool_calls",
}
GRID = 40


@dataclass(frozen=True, slots=True)
class Interval:
    """`mean ± half`; half is NaN for fewer than two values."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        if len(values) < 2:
            return cls(fmean(values), math.nan)
        return cls(fmean(values), student_t(len(values) - 1) * stdev(values) / math.sqrt(len(values)))

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.half:.3f}"


def by_arm(runs: Sequence[Run], kind: str) -> dict[str, dict[int, Run]]:
    """Return arm -> seed -> run, in the order of `runs`."""
    found: dict[str, dict[int, Run]] = {}
    for run in runs:
        if run["kind"] == kind:
            found.setdefault(run["arm"], {})[run["seed"]] = run
    return found


def differences(arm: Mapping[int, Run], control: Mapping[int, Run], value: Callable[[Run], float]) -> list[float]:
    """Return arm less control, within each seed that both have."""
    return [value(arm[seed]) - value(control[seed]) for seed in sorted(arm.keys() & control.keys())]


def ratio(arm: Mapping[int, Run], control: Mapping[int, Run], value: Callable[[Run], float]) -> str:
    """Return the geometric mean of arm over control within seeds, with its interval, over seeds that have a value."""
    pairs = [(value(arm[seed]), value(control[seed])) for seed in sorted(arm.keys() & control.keys())]
    logs = [math.log(one / other) for one, other in pairs if one > 0 and other > 0]
    if not logs:
        return "-"
    found = Interval.of(logs)
    low, high = math.exp(found.mean - found.half), math.exp(found.mean + found.half)
    return f"{math.exp(found.mean):.2f} ({low:.2f}-{high:.2f})"


def detectable(paired: Sequence[float]) -> float:
    """Return the smallest true difference that a two-sided paired t test at 5 % finds with probability `POWER`.

    (t_0.975 + t_0.8) standard errors of the mean difference, both quantiles with n - 1 degrees of freedom.
    """
    n = len(paired)
    if n < 2:
        return math.nan
    return (student_t(n - 1) + student_t(n - 1, 2 * POWER - 1)) * stdev(paired) / math.sqrt(n)


def cost(run: Run, of: str) -> list[float]:
    """Return the cost until each validation was made."""
    spent = [0.0, *accumulate(run["per_step"][COSTS[of]])]
    return [spent[step] for step, _ in run["valid"]]


def accuracy(run: Run) -> list[float]:
    return [value for _, value in run["valid"]]


def curve_mean(run: Run) -> float:
    """Return the mean height of the validation curve over rollouts, by the trapezoid rule."""
    xs, ys = cost(run, "rollouts"), accuracy(run)
    pairs = pairwise(zip(xs, ys, strict=True))
    return math.fsum((b - a) * (y + z) / 2 for (a, y), (b, z) in pairs) / (xs[-1] - xs[0])


def quality_at_calls(run: Run, spent: float, of: str = "executed tool calls") -> float:
    """The mean height of the validation curve over executed tool calls (or another cost), from none to so many."""
    xs, ys = cost(run, of), accuracy(run)
    points = [*((x, y) for x, y in zip(xs, ys, strict=True) if x < spent), (spent, _at(xs, ys, spent))]
    return math.fsum((b - a) * (y + z) / 2 for (a, y), (b, z) in pairwise(points)) / spent


def accuracy_at_calls(run: Run, spent: float, of: str = "executed tool calls") -> float:
    """Return the accuracy when so many were executed, between validations by a straight line."""
    return _at(cost(run, of), accuracy(run), spent)


def equal_budgets(arms: Mapping[str, Mapping[int, Run]], of: str) -> dict[int, float]:
    """Return seed -> what every arm of it spent at least."""
    seeds = set.union(*(set(runs) for runs in arms.values()))
    return {seed: min(cost(runs[seed], of)[-1] for runs in arms.values() if seed in runs) for seed in sorted(seeds)}


def p_value(paired: Sequence[float]) -> float:
    """Return p of a two-sided paired t test; NaN for fewer than two differences, and where all are equal."""
    if len(paired) < 2 or stdev(paired) == 0:
        return math.nan
    t = abs(fmean(paired)) / (stdev(paired) / math.sqrt(len(paired)))
    return 1 - t_within(t, len(paired) - 1)


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    """Return the p values of a family, corrected (Holm 1979): each is at least the one before it in rising order."""
    found: dict[str, float] = {}
    for rank, name in enumerate(sorted(ps, key=lambda name: ps[name])):
        found[name] = min(1.0, max([*found.values(), (len(ps) - rank) * ps[name]]))
    return found


def spent_until(run: Run, target: float, of: str) -> float:
    """Return the cost until the curve first reached `target`, between validations by a straight line; NaN if never."""
    xs, ys = cost(run, of), accuracy(run)
    if ys[0] >= target:
        return xs[0]
    for a, b, y, z in zip(xs, xs[1:], ys, ys[1:], strict=False):
        if z >= target:
            return a + (b - a) * (target - y) / (z - y)
    return math.nan


def on_grid(runs: Sequence[Run], of: str) -> tuple[list[float], list[Interval]]:
    """The runs' validation curves over a common axis, as far as all of them reach."""
    end = min(cost(run, of)[-1] for run in runs)
    grid = [end * i / GRID for i in range(GRID + 1)]
    return grid, [Interval.of([_at(cost(run, of), accuracy(run), x) for run in runs]) for x in grid]


def total(run: Run, metric: str) -> float:
    return math.fsum(run["per_step"][metric])


def mean_of(run: Run, metric: str) -> float:
    """Return the mean over the steps that have it; NaN where none has."""
    values = [value for value in run["per_step"].get(metric, ()) if value is not None]
    return fmean(values) if values else math.nan


def _at(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    for a, b, y, z in zip(xs, xs[1:], ys, ys[1:], strict=False):
        if x <= b:
            return y + (z - y) * (x - a) / (b - a) if b > a else y
    return ys[-1]
