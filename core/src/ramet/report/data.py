"""The report's data of a run without its rollouts: curves, facts, the before/after table, evaluations."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ramet.errors import ConfigError
from ramet.evaluate.stored import StoredEvaluation
from ramet.report.evaluation import evaluation_data
from ramet.report.group_counts import ALL, ROOTS, VALID, GroupCounts
from ramet.report.in_short import in_short
from ramet.runs.hub_inputs import recorded_folder
from ramet.runs.manifest import BROKEN_CONFIG, MANIFEST, read_config
from ramet.tracking.columns import RL
from ramet.tracking.jsonl import NAME, Curve, curves_of, read_metrics

logger = logging.getLogger(__name__)
MAX_POINTS = 600  # per curve; longer ones are thinned by means of neighbours
SFT_AREA = "sft/"  # metrics of SFT, on their own axis of optimiser steps
SFT_FOLDER = "sft"  # where a run of several phases keeps the curves of its SFT
VALIDATION = "valid/"  # metrics of validations: their curves come first
FIRST = (VALID, ROOTS, ALL, "rollout/forks_per_group")  # curves, before the console's
SHARES = ("_share", "hit_rate", "tool_use", "accuracy", "clip_fraction", "clip_fraction_low")  # ends of names
REWARDS = ("reward/", VALIDATION, "source/")
WANTED = list(dict.fromkeys([*FIRST, *(column.key for column in RL.columns if column.per is None)]))
# Metrics that are shown at once, with those.
MAIN = ("reward/", "valid/", "train/kl_reference", "sft/loss", "sft/valid_loss")
EVALUATION = "eval/"  # metrics of an evaluation, which has one value of each: they are in its table

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPhases:
    """Other runs that the report of one shows too, under the name of all."""

    name: str
    sft: Path | None  # with the curves of SFT
    evaluation: Path | None
    summary: Json  # numbers of all phases


def overview(
    run: Path,
    evaluation: StoredEvaluation | None = None,
    phases: ReportPhases | None = None,
    config: DictConfig | None = None,
    counts: GroupCounts | None = None,
    findings: Sequence[Json] | None = None,
) -> Json:
    """Everything on the first page. `counts`: of the recorded groups, for intervals and what masked rollouts;
    `findings`: what `ramet doctor` says, None if it was not asked.

    Raises `ConfigError` if the folder is missing or holds neither metrics nor an `evaluation`.
    """
    if not run.is_dir():
        raise ConfigError(f"report: {run} is not a folder; give a run directory such as runs/NAME")
    curves = curves_of(read_metrics(run / NAME))
    sft = {name: curve for name, curve in curves.items() if name.startswith(SFT_AREA)}
    sft_run = run / SFT_FOLDER if phases is None or phases.sft is None else phases.sft
    sft |= curves_of(read_metrics(sft_run / NAME))
    if not curves and not sft and evaluation is None:
        raise ConfigError(
            f"report: no metrics in {run}: {NAME} and {SFT_FOLDER}/{NAME} are missing or empty; has the run started?"
        )
    training = {name: curve for name, curve in curves.items() if name not in sft and not name.startswith(EVALUATION)}
    counts = GroupCounts() if counts is None else counts
    sections = [_section("Training", "step", training, counts), _section("SFT", "optimiser step", sft, counts)]
    measured = None if evaluation is None else evaluation_data(evaluation)
    manifest = read_json(run / MANIFEST)
    return {
        "name": run.resolve().name if phases is None else phases.name,
        "findings": findings,
        "in_short": in_short({**curves, **sft}, OmegaConf.create() if config is None else config, counts, measured),
        "sections": [section for section in sections if section["curves"]],
        "summary": _summary(read_json(run / "summary.json") if phases is None else phases.summary),
        "evaluation": measured,
        "facts": _facts(manifest),
        "manifest": json.dumps(manifest, indent=2) if manifest else None,
        "config": _text(run / "config.yaml"),
        "overrides": _text(run / "overrides.txt"),
    }


def tokenizer_folders(run: Path, config: DictConfig) -> list[Path]:
    """Folders that may hold the run's tokenizer: in the run itself, or in the folders that its configuration names."""
    named = [OmegaConf.select(config, key) for key in ("model.tokenizer", "model.path")]
    return [run / "tokenizer", run / "model", *(recorded_folder(value) for value in named if isinstance(value, str))]


def read_json(path: Path) -> Json | None:
    """A JSON object from a file; None where there is none. A broken file is reported and left out."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("report: %s could not be read: %s", path, error)
        return None
    return body if isinstance(body, dict) else None


def _section(title: str, x: str, curves: Mapping[str, Curve], counts: GroupCounts) -> Json:
    drawn: list[Json] = []
    for name in sorted(curves, key=in_order):
        curve = curve_data(name, curves[name], counts)
        points = (curve["x"], curve["y"])
        same = next((other["name"] for other in drawn if (other["x"], other["y"]) == points), None)
        drawn.append({**curve, "flat": len(set(curve["y"])) == 1, "same": same})
    return {"title": title, "x": x, "curves": drawn, "thinned": any(len(c[0]) > MAX_POINTS for c in curves.values())}


def in_order(name: str) -> tuple[bool, int, str]:
    """Sort metrics: validations, then rewards, then the console's metrics, then the others by name."""
    return not name.startswith(VALIDATION), WANTED.index(name) if name in WANTED else len(WANTED), name


def curve_data(name: str, curve: Curve, counts: GroupCounts) -> Json:
    """The points of one metric, with half of the 95 % interval of those that `counts` knows."""
    xs, ys = _thinned(*curve)
    halves = [counts.half_width(name, [int(step)]) for step in curve[0]] if len(curve[0]) <= MAX_POINTS else []
    return {
        "name": name,
        "main": name in WANTED or name.startswith(MAIN),
        "share": _is_share(name, curve[1]),
        "x": xs,
        "y": ys,
        "half": [None if half is None else _finite(half) for half in halves] if any(halves) else None,
    }


def _is_share(name: str, values: Sequence[float]) -> bool:
    """Whether a metric cannot leave [0, 1]: by its name, or a reward that never did."""
    if name.endswith(SHARES) or name.startswith("rollout/stop/"):
        return True
    return name.startswith(REWARDS) and all(0 <= value <= 1 for value in values if math.isfinite(value))


def _thinned(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float | None], list[float | None]]:
    n = len(xs)
    if n <= MAX_POINTS:
        return [_finite(x) for x in xs], [_finite(y) for y in ys]
    cuts = [round(i * n / MAX_POINTS) for i in range(MAX_POINTS + 1)]
    parts = list(pairwise(cuts))
    return [_mean(xs[a:b]) for a, b in parts], [_mean(ys[a:b]) for a, b in parts]


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return _finite(sum(finite) / len(finite)) if finite else None


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _summary(body: Json | None) -> Json | None:
    """Pairs `X_before`, `X_after` become rows of a table; the other numbers are listed below it."""
    if not body:
        return None
    names = [key.removesuffix("_before") for key in body if key.endswith("_before")]
    pairs = [
        [name, *(_cell(body[f"{name}_{when}"]) for when in ("before", "after"))]
        for name in names
        if f"{name}_after" in body
    ]
    used = {f"{name}_{when}" for name, *_ in pairs for when in ("before", "after")}
    return {"pairs": pairs, "rest": _flat({key: value for key, value in body.items() if key not in used})}


def _cell(value: Any) -> float | str:
    """A finite number as it is, and others as text: the page's JSON has no NaN."""
    return value if isinstance(value, int | float) and math.isfinite(value) else _text_of(value)


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _facts(manifest: Json | None) -> list[list[str]]:
    """The manifest without its lists, which are shown below it as JSON, and what only those concern who read the file.

    Only trainings list what a resume restores: an evaluation has no optimiser.
    """
    shown = manifest or {}
    left_out = {"format", "resume_level"} if shown.get("job") == "eval" else {"format"}
    return _flat({key: value for key, value in shown.items() if key not in left_out and not isinstance(value, list)})


def _flat(body: Mapping[str, Any], prefix: str = "") -> list[list[str]]:
    rows: list[list[str]] = []
    for key, value in body.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append([f"{prefix}{key}", _text_of(value)])
    return rows


def stored_config(run: Path) -> DictConfig:
    """Read the stored configuration; empty if there is none; a broken file is reported."""
    path = run / "config.yaml"
    try:
        return read_config(path)
    except FileNotFoundError:
        return OmegaConf.create()
    except BROKEN_CONFIG as error:
        logger.warning("report: %s could not be read: %s", path, error)
        return OmegaConf.create()


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
