"""Trainings as tables: those that are compared, and the points of a sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ramet.evaluate.statistics import Estimate
from ramet.evaluate.tables import TextTable
from ramet.history.summary import LAST_STEPS
from ramet.history.training import Training, difference_of_last, shown_steps
from ramet.tracking.columns import seconds, small

SHOWN_STEPS = 12  # of validations
OF_LAST = f"mean over the last steps (half of all, at most {LAST_STEPS}); ± 95 % interval, Student's t over steps"
ONE_RUN = "how far runs with other seeds differ is not in the interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One point of a sweep of trainings. `training` is None if it has no step."""

    number: int
    values: Mapping[str, str]  # keys that vary -> its values
    training: Training | None
    state: str


def training_cells(trainings: Sequence[Training]) -> TextTable:
    """Return a table with a row for each training: steps, state, result of the last steps, validation, time, host."""
    result = trainings[0].result
    rows = [
        [training.summary.name, training.summary.state.value, *_measured(training), *_time(training), training.hosts]
        for training in trainings
    ]
    columns = ("run", "state", "steps", result, "validation", "best", "a step", "all", "host")
    return TextTable(columns=columns, rows=rows, title="trainings", caption=f"{result}: {OF_LAST}")


def difference_cells(trainings: Sequence[Training]) -> TextTable:
    """Return a table with a row for each training but the first: its difference from the first in the last steps."""
    first, *others = trainings
    rows = []
    for training in others:
        difference, steps = difference_of_last(first, training)
        span = f" ({steps[0]} to {steps[-1]})" if steps else ""
        rows.append([training.summary.name, _signed(difference), f"{len(steps)}{span}"])
    return TextTable(
        columns=("run", f"{first.result} - {first.summary.name}", "steps"),
        rows=rows,
        title="difference",
        caption=f"paired by step, over the last steps that both have; * leaves 0 out; {ONE_RUN}",
    )


def validation_cells(trainings: Sequence[Training]) -> TextTable:
    """Return a table of validations by step, without rows if there are none."""
    steps = shown_steps(trainings, SHOWN_STEPS)
    curves = [dict(zip(*training.curves.valid, strict=True)) for training in trainings]
    rows = [[str(step), *(small(curve[step]) if step in curve else "-" for curve in curves)] for step in steps]
    names = dict.fromkeys(training.curves.valid_name for training in trainings if training.curves.valid[0])
    columns = ("step", *(training.summary.name for training in trainings))
    return TextTable(columns=columns, rows=rows, title=f"validation by step: {', '.join(names)}")


def point_cells(points: Sequence[SweepPoint]) -> TextTable:
    """Return a table with a row for each point of a sweep: keys that vary, result, validation, steps, state."""
    keys = list(dict.fromkeys(key for point in points for key in point.values))
    results = dict.fromkeys(point.training.result for point in points if point.training is not None)
    result = next(iter(results), "result")
    rows = []
    for point in points:
        steps, value, valid, _ = ["-"] * 4 if point.training is None else _measured(point.training)
        rows.append(
            [str(point.number), *(point.values.get(key, "-") for key in keys), value, valid, steps, point.state]
        )
    columns = ("point", *keys, result, "validation", "steps", "state")
    title = f"{len(points)} points of the sweep"
    return TextTable(columns=columns, rows=rows, title=title, caption=f"{result}: {OF_LAST}")


def _measured(training: Training) -> list[str]:
    """Steps, result of the last steps, last and best validation."""
    summary, best = training.summary, training.best_valid
    planned = "?" if summary.planned is None else str(summary.planned)
    last_valid = "-" if summary.valid is None else small(summary.valid)
    best_valid = "-" if best is None else f"{small(best[1])} at {best[0]}"
    return [f"{summary.done}/{planned}", _with_margin(training.curves.last()), last_valid, best_valid]


def _time(training: Training) -> list[str]:
    """Seconds of a step and of all attempts."""
    return ["-" if value is None else seconds(value) for value in (training.step_seconds, training.seconds)]


def _with_margin(estimate: Estimate) -> str:
    margin = "" if estimate.half_width is None else f" ± {small(estimate.half_width)}"
    return "-" if estimate.mean is None else f"{small(estimate.mean)}{margin if math.isfinite(estimate.mean) else ''}"


def _signed(difference: Estimate) -> str:
    if difference.mean is None:
        return "- (no step that both have)"
    if not math.isfinite(difference.mean):
        return small(difference.mean)
    if difference.half_width is None:
        return f"{difference.mean:+.3g}"
    low, high = difference.mean - difference.half_width, difference.mean + difference.half_width
    return f"{difference.mean:+.3g}, {low:+.3g} to {high:+.3g}{'' if low <= 0 <= high else ' *'}"
