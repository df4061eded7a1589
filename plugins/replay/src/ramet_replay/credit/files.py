"""The files of a measurement, in a folder of its own next to the run.

`points.jsonl` has a header and a line for each measured point, with the reward of every continuation: a later process
reads it and repeats no point. `credit.jsonl` has a line for each turn of the chosen rollouts whose points are measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError
from ramet.evaluate.lines import HEADER, ResumableLines
from ramet.io.atomic import open_atomic
from ramet.io.json_lines import json_line
from ramet.report.credit import CREDIT
from ramet.runs.resume import config_differences, is_safe

SCHEMA = 1
POINTS = "points.jsonl"
OWN = ("services", "model", ".")  # how names in the folder begin before the first point is measured
CONFIG = "config"  # in a header: the configuration as YAML


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """The continuations of one point. `begins`: the digest of the tokens before it; `rewards`: None where one was
    masked or left out; `tokens`: sampled in all.
    """

    point: str
    begins: str
    rewards: Sequence[float | None]
    answers: Sequence[str | None]
    tokens: int
    masked: Mapping[str, int]  # why -> how many

    @property
    def valid(self) -> list[float]:
        return [reward for reward in self.rewards if reward is not None]


def check_folder(folder: Path) -> None:
    """Raise `ConfigError` if a folder without measured points has other files, or is a file."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; name another one with --out")
    if (folder / POINTS).exists():
        return
    foreign = sorted(entry.name for entry in folder.glob("*") if not entry.name.startswith(OWN))
    if foreign:
        raise ConfigError(f"{folder} has other files ({foreign[0]}); name another folder with --out")


class PointFile:
    """The measured points in `folder`, read at once; more are added one by one.

    Raises `ConfigError` if they were measured with other weights, numbers or settings than `header` says, or if the
    folder has other files.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any]) -> None:
        path = folder / POINTS
        check_folder(folder)
        self._lines = ResumableLines(path)
        self._header = {HEADER: SCHEMA, **header}
        self.points: dict[str, MeasuredPoint] = {}
        if path.exists():
            self._read()

    def open(self) -> None:
        """Prepare the file for `add`: a torn last line is cut off."""
        self._lines.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._lines.resume():
            self._lines.begin(self._header)

    def forget_changed(self, begins: Mapping[str, str]) -> None:
        """Leave out points that now begin with other tokens, by name: a resumed run has recorded the step again."""
        for name, digest in begins.items():
            if (point := self.points.get(name)) is not None and point.begins != digest:
                del self.points[name]

    @property
    def tokens(self) -> int:
        return sum(point.tokens for point in self.points.values())

    def add(self, point: MeasuredPoint) -> None:
        """Keep a point. It survives a kill when this returns."""
        self._lines.append(asdict(point))
        self.points[point.point] = point

    def _read(self) -> None:
        try:
            lines = [line for _, line in self._lines.read()]
            points = [MeasuredPoint(**line) for line in lines if HEADER not in line]
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{self._lines.path}: not the points of `ramet credit`: {error}") from error
        for line in lines[:1]:
            if HEADER not in line:
                raise ConfigError(f"{self._lines.path}: begins without a header; name another folder with --out")
            self._check(line)
        self.points = {point.point: point for point in points}

    def _check(self, before: Mapping[str, Any]) -> None:
        changed = [
            f"{key} was {before.get(key)}, is {value}"
            for key, value in self._header.items()
            if key != CONFIG and before.get(key) != value
        ]
        changed += [
            f"{key} was {old}, is {new}"
            for key, old, new in config_differences(str(before.get(CONFIG, "")), self._header[CONFIG])
            if not is_safe("train", key, old, new) and not key.startswith("model.path")
        ]
        if changed:
            raise ConfigError(
                f"{self._lines.path} was measured differently: {'; '.join(changed)}; undo that, or name another folder "
                "with --out"
            )


def write_credit(folder: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write `credit.jsonl`, complete or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_atomic(folder / CREDIT) as file:
        file.writelines(map(json_line, rows))
    return folder / CREDIT
