"""Several runs side by side: each in short, the keys that differ, curves over each other, paired evaluations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from ramet.errors import ConfigError
from ramet.evaluate.compare import PairedComparison, compare
from ramet.evaluate.stored import StoredEvaluation
from ramet.report.data import EVALUATION, SFT_AREA, SFT_FOLDER, Json, curve_data, in_order, stored_config
from ramet.report.evaluation import evaluation_data, find_evaluation
from ramet.report.group_counts import GroupCounts
from ramet.report.in_short import in_short
from ramet.report.rollouts import recorded_counts
from ramet.runs.resume import config_differences
from ramet.tracking.columns import seconds
from ramet.tracking.jsonl import NAME, Curve, MetricLine, curves_of, read_metrics

MOST = 8  # runs: each has a colour
LEFT_OUT = ("run.name", "run.out", "evaluate.out")  # keys that differ in any two runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One run, as it is compared."""

    label: str
    lines: Sequence[MetricLine]
    curves: Mapping[str, Curve]
    counts: GroupCounts
    config: DictConfig
    config_text: str
    evaluation: StoredEvaluation | None


def comparison(runs: Sequence[Path]) -> Json:
    """The data of the page. Raises `ConfigError` for fewer than two runs, too many, one twice, a run without anything,
    and runs that share neither a metric nor a benchmark.
    """
    labels = _labels(runs)
    compared = [_read(run, label) for run, label in zip(runs, labels, strict=True)]
    sections = [
        _section("Training", "step", compared, sft=False),
        _section("SFT", "optimiser step", compared, sft=True),
    ]
    evaluations = _evaluations(compared)
    if not any(section["curves"] for section in sections) and not any(pair["rows"] for pair in evaluations):
        raise ConfigError(f"report: {' and '.join(labels)} share neither a metric nor a benchmark that both have run")
    return {
        "name": " and ".join(labels),
        "labels": labels,
        "in_short": _in_short(compared),
        "settings": _settings(compared),
        "sections": [section for section in sections if section["curves"]],
        "evaluations": evaluations,
    }


def _labels(runs: Sequence[Path]) -> list[str]:
    """Return the names of the runs; their paths where two have the same name."""
    if not 2 <= len(runs) <= MOST:
        raise ConfigError(f"report: {len(runs)} runs; from 2 to {MOST} can be drawn over each other")
    for first, second in combinations(runs, 2):
        if first.resolve() == second.resolve():
            raise ConfigError(f"report: {first} and {second} are the same run; give each once")
    names = [run.resolve().name for run in runs]
    return [name if names.count(name) == 1 else str(run) for name, run in zip(names, runs, strict=True)]


def _read(run: Path, label: str) -> ComparedRun:
    lines = read_metrics(run / NAME)
    config = stored_config(run)
    file = run / "config.yaml"
    found = ComparedRun(
        label=label,
        lines=lines,
        curves={**curves_of(read_metrics(run / SFT_FOLDER / NAME)), **curves_of(lines)},
        counts=recorded_counts(run),
        config=config,
        config_text=file.read_text(encoding="utf-8", errors="replace") if file.is_file() and config else "{}",
        evaluation=find_evaluation(run, config),
    )
    if not found.curves and found.evaluation is None:
        raise ConfigError(f"report: {run} has neither metrics nor results; has the run started?")
    return found


def _in_short(runs: Sequence[ComparedRun]) -> list[list[str]]:
    """Return rows: what a line is about, then each run's line."""
    columns = [_column(run) for run in runs]
    titles = list(dict.fromkeys(title for column in columns for title in column))
    return [[title, *(column.get(title) or "-" for column in columns)] for title in titles]


def _column(run: ComparedRun) -> dict[str, str]:
    measured = None if run.evaluation is None else evaluation_data(run.evaluation)
    lines = dict(in_short(run.curves, run.config, run.counts, measured))
    if len(run.lines) > 1:
        lines["time"] = seconds(run.lines[-1].time - run.lines[0].time)
    return lines


def _settings(runs: Sequence[ComparedRun]) -> list[list[str]]:
    """Return rows: a key of the configuration that differs, then each run's value."""
    first = runs[0]
    changes = [{key: values for key, *values in config_differences(first.config_text, run.config_text)} for run in runs]
    firsts = {key: values[0] for found in changes for key, values in found.items()}
    kept = sorted(key for key in firsts if key not in LEFT_OUT)
    return [
        [key, *(_value(found[key][1] if key in found else firsts[key]) for found in changes)]
        for key in kept
    ]  # fmt: skip


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _section(title: str, x: str, runs: Sequence[ComparedRun], *, sft: bool) -> Json:
    """Return the curves that at least two runs have, each with a line per run."""
    kept = [
        {
            name: curve
            for name, curve in run.curves.items()
            if name.startswith(SFT_AREA) is sft and not name.startswith(EVALUATION)
        }
        for run in runs
    ]
    names = {name for curves in kept for name in curves if sum(name in other for other in kept) > 1}
    drawn: list[Json] = []
    for name in sorted(names, key=in_order):
        lines = [
            {**curve_data(name, curves[name], run.counts), "label": run.label, "colour": number}
            for number, (run, curves) in enumerate(zip(runs, kept, strict=True))
            if name in curves
        ]
        points = [(line["x"], line["y"]) for line in lines]
        is_same = all(one == points[0] for one in points) or any(points == other["points"] for other in drawn)
        share, main = all(line["share"] for line in lines), lines[0]["main"]
        drawn.append({"name": name, "main": main, "share": share, "same": is_same, "lines": lines, "points": points})
    curves = [{key: value for key, value in curve.items() if key != "points"} for curve in drawn]
    return {"title": title, "x": x, "curves": curves}


def _evaluations(runs: Sequence[ComparedRun]) -> list[Json]:
    """Return the paired differences of each evaluation from the first one."""
    measured = [(run.label, run.evaluation.body) for run in runs if run.evaluation is not None]
    pairs = []
    for label, body in measured[1:]:
        before, first = measured[0]
        try:
            rows, note = [_row(found) for found in compare(first, body)], None
        except ConfigError as error:
            rows, note = [], str(error)
        pairs.append({"before": before, "after": label, "rows": rows, "note": note})
    return pairs


def _row(found: PairedComparison) -> Json:
    return {
        "benchmark": found.benchmark,
        "metric": found.metric,
        "before": found.before,
        "after": found.after,
        "difference": found.difference,
        "interval": None if found.low is None or found.high is None else [found.low, found.high],
        "won": len(found.won),
        "lost": len(found.lost),
        "tasks": found.n_tasks,
        "left_out": found.left_out,
    }


def file_name(runs: Sequence[Path]) -> str:
    """`compare-A-B.html`, cut to what a file system takes."""
    return f"compare-{'-'.join(run.resolve().name for run in runs)}"[:120] + ".html"
