"""Tables and plots of a page of docs/experiments, from the numbers that run.py stored.

    python bench/branching/report.py
    python bench/branching/report.py --results bench/results/branching.json --page docs/experiments/branching.md

A page has the tables whose titles it has, and gets them again; without a page all of them are printed.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from forks import CHANGES
from harness import RESULTS, table_text

from ramet_benchmarks.branching.compare import (
    COSTS,
    Interval,
    Run,
    accuracy_at_calls,
    by_arm,
    curve_mean,
    detectable,
    differences,
    equal_budgets,
    holm,
    mean_of,
    p_value,
    quality_at_calls,
    ratio,
    spent_until,
    total,
)
from ramet_benchmarks.branching.figures import CONTROL, Arms, plot_curves, plot_steps

ROOT = Path(__file__).resolve().parents[2]
NAME = "branching_equal_calls"
FEWER = "none6"  # no forks, and as many calls as with them: the control of the comparison at equal calls
OUTCOMES: dict[str, Callable[[Run], float]] = {
    "mean of the curve": curve_mean,
    "greedy at the end": lambda run: float(run["greedy"]),
    "sampled at the end": lambda run: float(run["sampled"]),
}
BRANCHING = {
    "rollout/entropy_rose_share": "share of tool results that raise the entropy",
    "rollout/forks_per_group": "forks per group",
    "rollout/effective_roots": "least effective size of a group",
}
FORKS = {
    "choices": "choices",
    "forks_at_choices": "forked there",
    "rose_at_choices": "rose there",
    "rose_elsewhere": "rose elsewhere",
    "same_root_differ": "differ, one root",
    "other_root_differ": "differ, two",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS / f"{NAME}.json")
    parser.add_argument("--page", type=Path, default=ROOT / f"docs/experiments/{NAME}.md")
    options = parser.parse_args()
    results = json.loads(options.results.read_text(encoding="utf-8"))
    runs, tasks = results["runs"], results["settings"]["tasks_per_step"]
    page = options.page.read_text(encoding="utf-8") if options.page.is_file() else ""
    for kind in dict.fromkeys(run["kind"] for run in runs):
        arms = by_arm(runs, kind)
        for title, table in tables(arms, kind, tasks).items():
            if page and f"```\n{title}\n" not in page:
                continue
            print(f"{table}\n")
            page = re.sub(rf"(?<=```\n){re.escape(title)}\n[^`]*", lambda _, table=table: f"{table}\n", page)
        if {CONTROL, FEWER} & arms.keys() and len(arms) > 1:
            plots(arms, kind, options.page.with_suffix(""))
    if page:
        options.page.write_text(page, encoding="utf-8")


def tables(arms: Arms, kind: str, tasks: int) -> dict[str, str]:
    """By title, which is a table's first line. `tasks` of a step."""
    found = {
        "suitable?": suitability(arms),
        "outcomes": outcomes(arms),
        "differences within seeds": paired(arms),
        "what it cost": costs(arms),
        **({"quality at equal calls": at_equal_calls(arms), "pairs": pairs(arms)} if FEWER in arms else {}),
        "where it forked": fork_points(arms, tasks),
        "do forks come out otherwise than their parents?": by_change(arms),
    }
    return {f"{kind}: {name}": f"{kind}: {name}\n{table_text(*table)}" for name, table in found.items()}


def plots(arms: Arms, kind: str, page: Path) -> None:
    control = FEWER if FEWER in arms else CONTROL
    title = f"{kind}: accuracy on unseen problems, with 95 % intervals; grey: {control}"
    plot_curves(page.with_name(f"{page.name}_{kind}_curves.png"), arms, control, title)
    plot_steps(page.with_name(f"{page.name}_{kind}_forks.png"), arms, BRANCHING, f"{kind}: while it trains")


def suitability(arms: Arms) -> tuple[list[str], list[list[str]]]:
    """The share of tool results that raise the entropy, by thirds of a run, and forks over all of it."""
    rows = []
    for arm, runs in arms.items():
        rose = _columns([run["per_step"]["rollout/entropy_rose_share"] for run in runs.values()])
        thirds = [f"{_third(rose, part):.2f}" for part in range(3)]
        rows.append([arm, str(len(runs)), *thirds, _mean(runs, "rollout/forks_per_group")])
    return ["arm", "runs", "rose, first third", "second", "last", "forks/group"], rows


def outcomes(arms: Arms) -> tuple[list[str], list[list[str]]]:
    rows = [
        [arm, *(str(Interval.of([value(run) for run in runs.values()])) for value in OUTCOMES.values())]
        for arm, runs in arms.items()
    ]
    return ["arm", *OUTCOMES], rows


def paired(arms: Arms) -> tuple[list[str], list[list[str]]]:
    """Each arm less a control, with the interval and, in brackets, the smallest difference that could be detected."""
    rows = []
    for control in (_control(arms), "random"):
        for arm, runs in arms.items():
            if arm == control or control not in arms:
                continue
            found = [differences(runs, arms[control], value) for value in OUTCOMES.values()]
            rows.append([f"{arm} - {control}", *(f"{Interval.of(one)} [{detectable(one):.3f}]" for one in found)])
    return ["", *OUTCOMES], rows


def costs(arms: Arms) -> tuple[list[str], list[list[str]]]:
    """Per trained rollout; and what was spent until `reached`, as a share of what the control spent."""
    target, rows = reached(arms), []
    for arm, runs in arms.items():
        control = arms[_control(arms)]
        until = [ratio(runs, control, partial(spent_until, target=target, of=of)) for of in COSTS]
        never = sum(math.isnan(spent_until(run, target, "rollouts")) for run in runs.values())
        rows.append(
            [
                arm,
                _per_rollout(runs, "rollout/executed_tool_calls", 2),
                _per_rollout(runs, "rollout/logical_tool_calls", 2),
                _per_rollout(runs, "rollout/executed_sampled_tokens", 1),
                *until,
                str(never),
                f"{fmean(run['wall_s'] for run in runs.values()):.0f}",
                f"{fmean(run['cpu_s'] for run in runs.values()):.0f}",
            ]
        )
    shares = [f"{of.split()[-1]} until {target:.2f}" for of in COSTS]
    return ["arm", "calls", "logical", "tokens", *shares, "never", "wall s", "CPU s"], rows


def at_equal_calls(arms: Arms) -> tuple[list[str], list[list[str]]]:
    """The endpoint of the page, and the accuracy when the budget is used; p values of the arms with forks alone."""
    quality, last = _at_equal(arms, quality_at_calls), _at_equal(arms, accuracy_at_calls)
    less = {arm: differences(runs, arms[FEWER], quality) for arm, runs in arms.items() if arm != FEWER}
    ps = {arm: p_value(found) for arm, found in less.items() if arm != CONTROL}
    corrected, rows = holm(ps), []
    for arm, runs in arms.items():
        difference = f"{Interval.of(less[arm])} [{detectable(less[arm]):.3f}]" if arm in less else ""
        p = [f"{ps[arm]:.3f}", f"{corrected[arm]:.3f}"] if arm in ps else ["", ""]
        rows.append([arm, str(len(runs)), _interval(runs, quality), difference, *p, _interval(runs, last)])
    return ["arm", "seeds", "quality", f"less {FEWER}", "p", "Holm", "accuracy there"], rows


def pairs(arms: Arms) -> tuple[list[str], list[list[str]]]:
    """Other differences within seeds, which decide nothing."""
    steps = next(run["steps"] for runs in arms.values() for run in runs.values())
    outcomes = {
        "quality at equal calls": _at_equal(arms, quality_at_calls),
        "quality at equal tokens": _at_equal(arms, quality_at_calls, "sampled tokens"),
        f"sampled after {steps} steps": OUTCOMES["sampled at the end"],
    }
    wanted = [(FEWER, CONTROL), *((arm, CONTROL) for arm in arms if arm not in (FEWER, CONTROL))]
    wanted += [("shuffled", "random"), ("arpo", "random"), ("arpo", "shuffled"), ("aepo", "random")]
    rows = []
    for arm, other in wanted:
        if arm in arms and other in arms:
            found = [differences(arms[arm], arms[other], value) for value in outcomes.values()]
            rows.append([f"{arm} - {other}", *(f"{Interval.of(one)} [{detectable(one):.3f}]" for one in found)])
    return ["", *outcomes], rows


def _at_equal(
    arms: Arms, measured: Callable[[Run, float, str], float], of: str = "executed tool calls"
) -> Callable[[Run], float]:
    budgets = equal_budgets(arms, of)
    return lambda run: measured(run, budgets[run["seed"]], of)


def _interval(runs: Mapping[int, Run], value: Callable[[Run], float]) -> str:
    return str(Interval.of([value(run) for run in runs.values()]))


def reached(arms: Arms) -> float:
    """The accuracy that costs are compared at: nine tenths of what the control reaches in the last validation."""
    control = arms[_control(arms)]
    return 0.9 * fmean(run["valid"][-1][1] for run in control.values())


def _control(arms: Arms) -> str:
    return next((arm for arm in (CONTROL, FEWER) if arm in arms), next(iter(arms)))


def fork_points(arms: Arms, tasks: int) -> tuple[list[str], list[list[str]]]:
    """`FORKS` are explained in forks.py; "no signal" is a metric of the training.

    A group's effective size: as if relatives were copies, and with the correlation of rewards that the pairs show.
    """
    rows = []
    for arm, runs in arms.items():
        found = {name: fmean(run["forks"][name] for run in runs.values()) for name in FORKS}
        least = fmean(mean_of(run, "rollout/effective_roots") for run in runs.values())
        size = (
            fmean(total(run, "rollout/rollouts") / len(run["per_step"]["rollout/rollouts"]) for run in runs.values())
            / tasks
        )
        alike = max(0.0, 1 - found["same_root_differ"] / found["other_root_differ"])
        sizes = [f"{least:.2f}", f"{size / (1 + (size / least - 1) * alike):.2f}"]
        rows.append([arm, *(f"{share:.2f}" for share in found.values()), *sizes, _mean(runs, "group/no_signal_share")])
    return ["arm", *FORKS.values(), "least size", "effective size", "no signal"], rows


def by_change(arms: Arms) -> tuple[list[str], list[list[str]]]:
    """Of the forks by the change of entropy where they began: share of all, and of these whose reward differs.

    Both fall while it trains, so the last column compares the two middle sorts within thirds of the runs.
    """
    rows = []
    for arm, runs in arms.items():
        thirds = [_summed(one) for one in zip(*(_thirds(run) for run in runs.values()), strict=True)]
        sorts = _summed(thirds)
        total_forks = sum(n for n, _ in sorts)
        if total_forks:
            cells = [f"{n / total_forks:.2f}: {differ / max(n, 1):.2f}" for n, differ in sorts]
            rows.append([arm, *cells, _step([sorts]), _step(thirds) if len(thirds) > 1 else "-"])
    low, *_, high = CHANGES
    between = [f"{one:g}-{other:g}" for one, other in pairwise(CHANGES)]
    return ["arm", f"below {low:g} nats", *between, f"over {high:g}", "step", "within thirds"], rows


def _thirds(run: Run) -> list[list[list[int]]]:
    """Third of the run -> sort of fork -> how many, and how many differ. Early results have the whole run as one."""
    found: list[Any] = run["forks"]["by_change"]
    return found if isinstance(found[0][0], list) else [found]


def _summed(several: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    return [[sum(pair) for pair in zip(*one, strict=True)] for one in zip(*several, strict=True)]


def _step(strata: Sequence[Sequence[Sequence[int]]]) -> str:
    """How much more often forks of the third sort differ than those of the second; weights of Mantel and Haenszel."""
    found = [(n * m / (n + m), y / m - x / n) for _, (n, x), (m, y), _ in strata if n and m]
    weights = sum(weight for weight, _ in found)
    return f"{sum(weight * step for weight, step in found) / weights:+.3f}" if weights else "-"


def _per_rollout(runs: Mapping[int, Run], metric: str, digits: int) -> str:
    return f"{fmean(total(run, metric) / total(run, 'rollout/rollouts') for run in runs.values()):.{digits}f}"


def _mean(runs: Mapping[int, Run], metric: str) -> str:
    return f"{fmean(mean_of(run, metric) for run in runs.values()):.2f}"


def _columns(rows: Sequence[Sequence[float | None]]) -> list[float]:
    """Means over the rows, column by column."""
    columns = ([value for value in column if value is not None] for column in zip(*rows, strict=False))
    return [fmean(values) if values else math.nan for values in columns]


def _third(values: Sequence[float], part: int) -> float:
    n = len(values)
    own = values[part * n // 3 : (part + 1) * n // 3]
    return fmean(own) if own else math.nan


if __name__ == "__main__":
    main()
