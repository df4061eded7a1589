"""Tables of the leaderboard, from finished runs: every policy at equal calls and at equal tokens, against controls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from ramet_benchmarks.branching.arms import CONTROLS, FEWER
from ramet_benchmarks.branching.compare import (
    Interval,
    Run,
    detectable,
    differences,
    equal_budgets,
    holm,
    p_value,
    quality_at_calls,
    total,
)

Arms = Mapping[str, Mapping[int, Run]]  # arm -> seed -> run
CALLS, TOKENS = "executed tool calls", "sampled tokens"
Table = tuple[list[str], list[list[str]]]  # head, rows


def board(arms: Arms) -> Table:
    """Rank the arms by their quality at equal calls. p values are of the policies against `FEWER`, Holm-corrected."""
    calls, tokens = quality_at_equal(arms, CALLS), quality_at_equal(arms, TOKENS)
    less = {arm: differences(runs, arms[FEWER], calls) for arm, runs in arms.items() if arm != FEWER}
    named = [arm for arm in less if not _is_control(arm, arms)]
    ps = holm({arm: p for arm in named if not math.isnan(p := p_value(less[arm]))})
    rows = []
    for arm, runs in sorted(arms.items(), key=lambda item: -mean_of_runs(item[1], calls)):
        rows.append(
            [
                f"{arm} (control)" if _is_control(arm, arms) else arm,
                str(len(runs)),
                shown(runs, calls),
                _difference(less.get(arm)),
                f"{ps[arm]:.3f}" if arm in ps else "",
                shown(runs, tokens),
                _difference(differences(runs, arms[FEWER], tokens) if arm != FEWER else None),
                shown(runs, lambda run: float(run["sampled"])),
                _per_rollout(runs, "rollout/executed_tool_calls", 2),
                _per_rollout(runs, "rollout/executed_sampled_tokens", 1),
            ]
        )
    head = ["policy", "seeds", "quality at equal calls", f"less {FEWER}", "p", "quality at equal tokens"]
    return [*head, f"less {FEWER}", "accuracy at the end", "calls", "tokens"], rows


def against_chance(arms: Arms) -> Table:
    """Return each policy less `random` and less its shuffled control, within seeds."""
    outcomes = [quality_at_equal(arms, CALLS), quality_at_equal(arms, TOKENS)]
    rows = []
    for arm in arms:
        if _is_control(arm, arms):
            continue
        for control in ("random", f"{arm}_shuffled"):
            if control in arms:
                found = [_difference(differences(arms[arm], arms[control], value)) for value in outcomes]
                rows.append([f"{arm} - {control}", *found])
    return ["", "quality at equal calls", "quality at equal tokens"], rows


def quality_at_equal(arms: Arms, cost: str) -> Callable[[Run], float]:
    """Return the measure: the mean height of a run's validation curve, from nothing spent to what every arm of its
    seed spent at least. NaN where an arm spent nothing.
    """
    budgets = equal_budgets(arms, cost)

    def measure(run: Run) -> float:
        budget = budgets[run["seed"]]
        return quality_at_calls(run, budget, cost) if budget > 0 else math.nan

    return measure


def markdown(table: Table) -> str:
    """Return the table as Markdown."""
    head, rows = table
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def mean_of_runs(runs: Mapping[int, Run], value: Callable[[Run], float]) -> float:
    """Return the mean over seeds, minus infinity where it is not known, so that such an arm is last."""
    mean = fmean(value(run) for run in runs.values())
    return -math.inf if math.isnan(mean) else mean


def shown(runs: Mapping[int, Run], value: Callable[[Run], float]) -> str:
    """Return the mean with its interval over seeds, `-` where a seed has none."""
    return _interval([value(run) for run in runs.values()])


def _is_control(arm: str, arms: Arms) -> bool:
    return arm in CONTROLS or arm.removesuffix("_shuffled") in arms.keys() - {arm}


def _difference(found: Sequence[float] | None) -> str:
    """Return the mean difference with its interval and, in brackets, the smallest that so many seeds would find."""
    if not found or any(math.isnan(value) for value in found):
        return "" if found is None else "-"
    return _interval(found) + (f" [{detectable(found):.3f}]" if len(found) > 1 else "")


def _interval(values: Sequence[float]) -> str:
    found = Interval.of(values)
    if math.isnan(found.mean):
        return "-"
    return f"{found.mean:.3f}" if math.isnan(found.half) else str(found)


def _per_rollout(runs: Mapping[int, Run], metric: str, digits: int) -> str:
    return f"{fmean(total(run, metric) / total(run, 'rollout/rollouts') for run in runs.values()):.{digits}f}"
