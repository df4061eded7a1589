"""Which steps' rollouts go into the report: the first, the last, and evenly spaced ones between, up to a size."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ramet.errors import ConfigError
from ramet.report.tokens import Splitter
from ramet.report.tree import group_data
from ramet.rollout.record import read_records

FOLDER = "rollouts"
_STEP_FILE = re.compile(r"step_(\d+)\.jsonl(\.\w+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """`scripts` are the kept steps as safe JSON, in order of step. `notes` say what is not shown."""

    scripts: list[str]
    notes: list[str]


def collect_steps(run: Path, split: Splitter, *, max_bytes: int) -> Steps:
    """Read the recorded groups of a run until the budget is used up. An unreadable file is noted, not fatal."""
    files = step_files(run)
    kept: dict[int, str] = {}
    notes: list[str] = []
    left_out: list[int] = []
    for index in spread(len(files)):
        step, path = files[index]
        try:
            script, n_left = _step_script(path, split, max_bytes, whole=bool(kept))
        except (ConfigError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            notes.append(f"Step {step}: its rollouts could not be read ({type(error).__name__}: {error}).")
            continue
        if script is None:
            left_out.append(step)
            continue
        kept[step] = script
        max_bytes -= len(script)
        if n_left:
            notes.append(f"Step {step}: only its first groups are shown, {n_left} did not fit into this file.")
    if left_out:
        notes.append(
            f"This file holds the rollouts of {len(kept)} of {len(files)} steps; left out for its size: "
            f"{ranges(left_out)}. All are in the folder {FOLDER} of the run."
        )
    return Steps(scripts=[kept[step] for step in sorted(kept)], notes=notes)


def step_files(run: Path) -> list[tuple[int, Path]]:
    """(step, file) of every recorded step, in order."""
    found = ((_STEP_FILE.fullmatch(path.name), path) for path in (run / FOLDER).glob("step_*"))
    return sorted((int(match[1]), path) for match, path in found if match)


def spread(n: int) -> Iterator[int]:
    """All of `range(n)`, in an order of which every beginning is about evenly spaced: first, last, middle, quarters…"""
    if n > 0:
        yield 0
    if n > 1:
        yield n - 1
    gaps = deque([(0, n - 1)])
    while gaps:
        low, high = gaps.popleft()
        if high - low > 1:
            middle = (low + high) // 2
            yield middle
            gaps.extend([(low, middle), (middle, high)])


def ranges(numbers: Sequence[int]) -> str:
    """`[1, 2, 3, 7]` as `1-3, 7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def safe_json(value: object) -> str:
    """ASCII JSON that cannot end the script element it stands in or open another one."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _step_script(path: Path, split: Splitter, max_bytes: int, *, whole: bool) -> tuple[str | None, int]:
    """The step's groups as a JSON list, and how many were left out; None if they do not fit and `whole` is asked."""
    groups: list[str] = []
    size, left = 2, 0
    for index, record in enumerate(read_records(path)):
        if left:
            left += 1
            continue
        group = safe_json(group_data(record, index, split))
        size += len(group) + 1
        if size <= max_bytes:
            groups.append(group)
        elif whole:
            return None, 0
        else:
            left = 1
    return f"[{','.join(groups)}]", left
