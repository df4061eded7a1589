"""What a validation said of a checkpoint: `SCORE.json` in its folder, by which `train.keep_best` keeps the best one.

Each checkpoint holds its own score and none that of others, so a resumed run compares the same numbers as one that was
never stopped. Higher is better; of equal ones the earlier stays the best. A run that validates after its checkpoint was
written, or by another metric, writes the file later, so the checkpoint's manifest never lists it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from ramet.io.atomic import write_file

FILE = "SCORE.json"
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointScore:
    metric: str
    value: float  # finite

    def write(self, folder: Path) -> None:
        write_file(folder / FILE, json.dumps(asdict(self)))


def score_of(metrics: Mapping[str, float], metric: str) -> CheckpointScore | None:
    """None if the metric is not there or not a finite number: such a checkpoint is never the best."""
    value = metrics.get(metric)
    return None if value is None or not math.isfinite(value) else CheckpointScore(metric=metric, value=value)


def read_score(folder: Path) -> CheckpointScore | None:
    """None if there is none that can be read."""
    try:
        body = json.loads((folder / FILE).read_text(encoding="ascii"))
        return score_of({str(body["metric"]): float(body["value"])}, str(body["metric"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def best_of(scores: Iterable[tuple[Key, CheckpointScore | None]], metric: str) -> tuple[Key, CheckpointScore] | None:
    """The best of these, in order of their steps; scores in other metrics do not count."""
    found = [(key, score) for key, score in scores if score is not None and score.metric == metric]
    return max(found, key=lambda one: one[1].value, default=None)  # the first of equal ones
