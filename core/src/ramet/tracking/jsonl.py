"""The metrics file: append-only `metrics.jsonl`, one JSON object per line (`step`, `time`, then the metrics).

The report is made from it. A line torn by a kill is dropped and reported, never guessed; steps
order the file, the clock does not. Numbers that JSON lacks are written as the strings "nan", "inf" and "-inf".
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ramet.io.atomic import write_file
from ramet.io.json_lines import append_line, cut_torn_end

logger = logging.getLogger(__name__)
NAME = "metrics.jsonl"
T = TypeVar("T")
Curve = tuple[list[float], list[float]]  # steps, values
_RESERVED = ("step", "time")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLine:
    """One line: what was logged for a step. A step may have several (training, then validation)."""

    step: int
    time: float  # seconds since 1970
    metrics: Mapping[str, float]

    def line(self) -> str:
        body: dict[str, float | str] = {"step": self.step, "time": round(self.time, 3)}
        body.update({name: _written(value) for name, value in self.metrics.items() if name not in _RESERVED})
        return json.dumps(body, allow_nan=False)


class JsonlTracker:
    """Appends to the metrics file. A torn last line of an earlier process is cut off when the file is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        cut_torn_end(path)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line, complete or not at all."""
        append_line(self.path, MetricLine(step=step, time=time.time(), metrics=metrics).line())

    def rewind(self, step: int) -> None:
        """Drop the entries of all steps after `step`: a resumed run writes them again."""
        entries = read_metrics(self.path)
        kept = [entry for entry in entries if entry.step <= step]
        if len(kept) == len(entries):
            return
        write_file(self.path, "".join(f"{entry.line()}\n" for entry in kept))

    def close(self) -> None:
        """Do nothing: no file is held open between lines."""


def read_metrics(path: Path) -> list[MetricLine]:
    """All entries in file order; a missing file has none. Lines that cannot be read are skipped and reported."""
    if not path.exists():
        return []
    entries: list[MetricLine] = []
    bad: list[int] = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if line.strip():
            entry = _parsed(line)
            entries.append(entry) if entry else bad.append(number)
    if bad:
        logger.warning("%s: skipped %d unreadable line(s), the first is line %d", path, len(bad), bad[0])
    return entries


def curves_of(entries: Iterable[MetricLine]) -> dict[str, Curve]:
    """Metric name -> (steps, values), sorted by step; of a metric logged twice in a step the last value counts."""
    values: dict[str, dict[int, float]] = {}
    for entry in entries:
        for name, value in entry.metrics.items():
            values.setdefault(name, {})[entry.step] = value
    return {
        name: ([float(step) for step in sorted(values[name])], [values[name][step] for step in sorted(values[name])])
        for name in sorted(values)
    }


def evenly_spaced(items: Sequence[T], most: int) -> list[T]:
    """Return `most` of the items, evenly spaced from the first to the last."""
    if len(items) <= most or most < 2:
        return list(items[:most])
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _written(value: float) -> float | int | str:
    number = value if isinstance(value, int) else float(value)  # numpy and torch scalars become plain numbers
    return number if math.isfinite(number) else str(number)


def _parsed(line: bytes) -> MetricLine | None:
    try:
        body = json.loads(line)
        metrics = {name: float(value) for name, value in body.items() if name not in _RESERVED}
        return MetricLine(step=int(body["step"]), time=float(body["time"]), metrics=metrics)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
