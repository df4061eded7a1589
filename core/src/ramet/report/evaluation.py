"""An evaluation as the report's data: scores with intervals, by benchmark and data source, tools, what is missing."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ramet.errors import ConfigError
from ramet.evaluate.agreement import judge_files
from ramet.evaluate.statistics import Estimate, avg_at_k, pass_at_k
from ramet.evaluate.stored import StoredEvaluation, result_files, stored_evaluation
from ramet.evaluate.tables import end_shares, without_answers
from ramet.evaluate.tasks import TaskResult, scores_of

logger = logging.getLogger(__name__)
SHOWN = 8  # reasons for which rollouts have no score, of each benchmark
Json = dict[str, Any]


def find_evaluation(run: Path, config: DictConfig) -> StoredEvaluation | None:
    """Find the evaluation of a run directory, finished or running; a broken one is reported and left out."""
    named = OmegaConf.select(config, "run.out") or OmegaConf.select(config, "evaluate.out")  # of 0.1.0
    for out in result_files(run, {"out": named, "root": OmegaConf.select(config, "run.root")}):
        try:
            if (evaluation := stored_evaluation(out)) is not None:
                return evaluation
        except ConfigError as error:
            logger.warning("report: %s", error)
    return None


def evaluation_data(evaluation: StoredEvaluation) -> Json:
    body = evaluation.body
    return {
        "model": body["model"],
        "k": body["k"],
        "finished": evaluation.is_finished,
        "benchmarks": [_benchmark(result, body["k"]) for result in body["results"]],
        "notes": [*without_answers(body["results"])],
        "judges": list(_judges(evaluation)),
    }


def _benchmark(result: Mapping[str, Any], k: int) -> Json:
    tasks = [TaskResult.from_body(task) for task in result["tasks"]]
    main = result["metrics"][0]["metric"]
    return {
        "name": result["name"],
        "n_tasks": len(tasks),
        "judged": result["judged"],
        "ends": end_shares(result),
        "metrics": [_metric(metric) for metric in result["metrics"]],
        "sources": _sources(tasks, main),
        "curve": _pass_curve(result["name"], tasks, main, k),
        "tools": result["tools"],
        "missing": _missing(tasks, main),
    }


def _metric(metric: Mapping[str, Any]) -> Json:
    return {
        "name": metric["metric"],
        "avg": [metric["avg"]["mean"], metric["avg"]["half_width"]],
        "bounds": metric.get("bounds"),
        "passes": [[estimate["k"], estimate["estimate"]["mean"]] for estimate in metric["passes"]],
        "maj": (metric.get("maj") or {}).get("mean"),
        "judged": f"{metric['n_judged']} of {metric['n_rollouts']}",
    }


def _sources(tasks: Sequence[TaskResult], metric: str) -> list[Json]:
    """Return the main metric by data source, if there are several."""
    sources = sorted({task.data_source for task in tasks})
    if len(sources) < 2:
        return []
    return [_source(source, [task for task in tasks if task.data_source == source], metric) for source in sources]


def _source(source: str, tasks: Sequence[TaskResult], metric: str) -> Json:
    scores = scores_of(tasks, metric)
    average: Estimate = avg_at_k(scores)
    rows = [score for row in scores.values() for score in row]
    judged = sum(score is not None for score in rows)
    return {
        "name": source,
        "n_tasks": len(tasks),
        "avg": [average.mean, average.half_width],
        "judged": f"{judged} of {len(rows)}",
    }


def _pass_curve(name: str, tasks: Sequence[TaskResult], metric: str, k: int) -> Json | None:
    """pass@j for every j up to k, over the tasks with at least j judged rollouts; None if k is 1."""
    scores = scores_of(tasks, metric)
    points = [(j, mean) for j in range(1, k + 1) if (mean := pass_at_k(scores, j).estimate.mean) is not None]
    if k == 1 or not points:
        return None
    return {"name": name, "x": [j for j, _ in points], "y": [mean for _, mean in points]}


def _missing(tasks: Sequence[TaskResult], metric: str) -> list[list[Any]]:
    """Why rollouts have no score, the commonest reason first: `[reason, n]`."""
    reasons = Counter(
        why for task in tasks for rollout in task.rollouts if (why := rollout.why_missing(metric)) is not None
    )
    shown = reasons.most_common(SHOWN)
    rest = reasons.total() - sum(n for _, n in shown)
    return [[reason, n] for reason, n in [*shown, *([("other reasons", rest)] if rest else [])]]


def _judges(evaluation: StoredEvaluation) -> Iterator[Json]:
    """Verdicts of `ramet judge` on these rollouts."""
    for file in judge_files(evaluation.out):
        try:
            body = json.loads(file.read_text(encoding="ascii"))
            if body["rollouts"] != (evaluation.body["rollouts"] or {}).get("sha256"):
                logger.warning("report: %s is of other rollouts, and left out; judge again", file)
                continue
            for result in body["results"]:
                yield {"judge": body["judge"], "benchmark": result["name"], **_metric(result["metrics"][0])}
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            logger.warning("report: %s could not be read: %r", file, error)
