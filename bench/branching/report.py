"""Tables and plots of docs/experiments/branching.md, from the numbers that run.py stored.

python bench/branching/report.py [--results bench/results/branching.json] [--plots docs/experiments]
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from compare import (
    COSTS,
    Interval,
    Run,
    by_arm,
    curve_mean,
    detectable,
    differences,
    mean_of,
    ratio,
    spent_until,
    total,
)
from figures import CONTROL, Arms, plot_curves, plot_steps
from forks import CHANGES
from harness import RESULTS, table_text

ROOT = Path(__file__).resolve().parents[2]
OUTCOMES: dict[str, Callable[[Run], float]] = {
    "mean of the curve": curve_mean,
    "greedy at the end": lambda run: float(run["greedy"]),
    "sampled at the end": lambda run: float(run["sampled"]),
}
BRANCHING = {
    "rollout/entropy_rose_share": "share of tool results that raise the entropy",
    "rollout/forks_per_group": "forks per group",
    "rollout/effective_roots": "effective size of a group",
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
    parser.add_argument("--results", type=Path, default=RESULTS / "branching.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/experiments/branching.md")
    options = parser.parse_args()
    runs = json.loads(options.results.read_text(encoding="utf-8"))["runs"]
    page = options.page.read_text(encoding="utf-8") if options.page.is_file() else ""
    for kind in dict.fromkeys(run["kind"] for run in runs):
        arms = by_arm(runs, kind)
        for title, table in tables(arms, kind).items():
            print(f"{table}\n")
            page = re.sub(rf"(?<=```\n){re.escape(title)}\n[^`]*", lambda _, table=table: f"{table}\n", page)
        if CONTROL in arms and len(arms) > 1:
            plots(arms, kind, options.page.parent)
    if page:
        options.page.write_text(page, encoding="utf-8")


def tables(arms: Arms, kind: str) -> dict[str, str]:
    """By title, which is a table's first line."""
    found = {
        "suitable?": suitability(arms),
        "outcomes": outcomes(arms),
        "differences within seeds": paired(arms),
        "what it cost": costs(arms),
        "where it forked": fork_points(arms),
        "do forks come out otherwise than their parents?": by_change(arms),
    }
    return {f"{kind}: {name}": f"{kind}: {name}\n{table_text(*table)}" for name, table in found.items()}


def plots(arms: Arms, kind: str, folder: Path) -> None:
    title = f"{kind}: accuracy on unseen problems, with 95 % intervals; grey: {CONTROL}"
    plot_curves(folder / f"branching_{kind}_curves.png", arms, title)
    plot_steps(folder / f"branching_{kind}_forks.png", arms, BRANCHING, f"{kind}: while it trains")


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
    for control in (CONTROL, "random"):
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
        control = arms.get(CONTROL, runs)
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


def reached(arms: Arms) -> float:
    """The accuracy that costs are compared at: nine tenths of what the control reaches in the last validation."""
    control = arms.get(CONTROL) or next(iter(arms.values()))
    return 0.9 * fmean(run["valid"][-1][1] for run in control.values())


def fork_points(arms: Arms) -> tuple[list[str], list[list[str]]]:
    """`FORKS` are explained in forks.py; the last two are metrics of the training."""
    rows = []
    for arm, runs in arms.items():
        shares = [f"{fmean(run['forks'][name] for run in runs.values()):.2f}" for name in FORKS]
        rows.append([arm, *shares, _mean(runs, "rollout/effective_roots"), _mean(runs, "group/no_signal_share")])
    return ["arm", *FORKS.values(), "effective size", "no signal"], rows


def by_change(arms: Arms) -> tuple[list[str], list[list[str]]]:
    """Of the forks by the change of entropy where they began: share of all, and of these whose reward differs."""
    rows = []
    for arm, runs in arms.items():
        sorts = [[sum(pair) for pair in zip(*one, strict=True)] for one in zip(*_changes(runs), strict=True)]
        total_forks = sum(n for n, _ in sorts)
        if total_forks:
            rows.append([arm, *(f"{n / total_forks:.2f}: {differ / max(n, 1):.2f}" for n, differ in sorts)])
    low, *_, high = CHANGES
    between = [f"{one:g}-{other:g}" for one, other in pairwise(CHANGES)]
    return ["arm", f"below {low:g} nats", *between, f"over {high:g}"], rows


def _changes(runs: Mapping[int, Run]) -> list[list[list[int]]]:
    return [run["forks"]["by_change"] for run in runs.values()]


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
