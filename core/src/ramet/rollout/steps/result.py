"""Whether what a rollout step tells of its turns (info, reward, metrics) can be recorded. Runs and the kit ask this."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ramet.types import StepResult, StopReason


def outcome_problem(result: StepResult) -> str | None:
    """What is wrong and how to mend it; None if nothing is."""
    if result.stop is StopReason.PRUNED:
        return "stop is StopReason.PRUNED: only a branch policy prunes; use StopReason.DONE"
    if (problem := _json_problem(result.info)) is not None:
        return f"info is no JSON object ({problem}): use strings, finite numbers, lists and mappings"
    if result.reward is not None and not _is_finite(result.reward):
        return f"reward is {result.reward!r:.80}: give a finite number, or None for none"
    wrong = [f"{name!r} as {value!r:.80}" for name, value in result.metrics.items() if not _is_finite(value)]
    return f"metrics has {wrong[0]}: give finite numbers" if wrong else None


def recorded(info: Mapping[str, Any]) -> dict[str, Any]:
    """As the record on disk gives it back, and a copy: the step may go on with what it put in."""
    return dict(json.loads(json.dumps(dict(info)))) if info else {}


def _json_problem(info: object) -> str | None:
    if info == {}:  # of most steps and turns; asking whether it is a Mapping costs more
        return None
    if not isinstance(info, Mapping):
        return f"it is {type(info).__name__}"
    try:
        json.dumps(dict(info), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return str(error)
    return None


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
