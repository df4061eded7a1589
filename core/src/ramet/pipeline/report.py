"""The report of a finished pipeline: one page of its trainings and its last evaluation, one table of all scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramet.evaluate.files import read_summary
from ramet.evaluate.tables import TextTable, sweep_cells
from ramet.pipeline.stages import REPORT, Pipeline
from ramet.report.data import ReportPhases
from ramet.report.html import write_report


def write_pipeline_report(pipeline: Pipeline) -> Path:
    """Write the page into the folder of the pipeline, and return its path. Raises `ConfigError`.

    It is the page of the last RL training, with the curves of the last SFT and the last evaluation.
    """
    last = {stage.job: stage.folder for stage in pipeline.stages}
    main = next(last[job] for job in ("train", "sft", "eval") if job in last)
    scores = {
        f"{name}: {result['name']} {metric['metric']}": metric["avg"].get("mean")  # None: nothing was judged
        for name, body in _evaluations(pipeline).items()
        for result in body["results"]
        for metric in result["metrics"]
    }
    phases = ReportPhases(name=pipeline.folder.name, sft=last.get("sft"), evaluation=last.get("eval"), summary=scores)
    return write_report(main, pipeline.folder / REPORT, phases)


def score_tables(pipeline: Pipeline) -> list[TextTable]:
    """Return the scores of all evaluations in one table; nothing without one."""
    points = [*_evaluations(pipeline).items()]
    return [sweep_cells(points, title=f"evaluations of {pipeline.folder}", first="stage")] if points else []


def _evaluations(pipeline: Pipeline) -> dict[str, Mapping[str, Any]]:
    return {stage.name: read_summary(stage.output) for stage in pipeline.stages if stage.job == "eval"}
