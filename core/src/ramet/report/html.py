"""The report of a run as one HTML file that opens from disk and asks the network for nothing.

Rollouts are text that a model and the web wrote, so none of it may act: data is in the page as escaped ASCII JSON, the
script writes it with `textContent` only, and a content security policy allows exactly this script and this style. Steps
are the first, the last, and evenly spaced ones between, up to a size.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from ramet.errors import ConfigError
from ramet.io.atomic import write_file
from ramet.io.os_errors import os_error_text
from ramet.report.data import overview, tokenizer_folders
from ramet.report.tree import Splitter, find_splitter, group_data
from ramet.rollout.record import read_records

MAX_BYTES = 40_000_000  # of recorded rollouts in one file
MARKER = b'<meta name="generator" content="ramet report">'
HEAD_BYTES = 1024  # of a page: the marker is among them
SCRIPTS = ("text.js", "curves.js", "overview.js", "tasks.js", "lanes.js", "tree.js", "main.js")
STYLES = ("page.css", "rollouts.css")
FOLDER = "rollouts"
_STEP_FILE = re.compile(r"step_(\d+)\.jsonl(\.\w+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What is shown of the steps: `scripts` are the kept ones, safe JSON in order; `notes` name what is left out."""

    scripts: list[str]
    notes: list[str]


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the report of a run directory to `out`, by default its `report.html`, and return the path.

    Raises `ConfigError` if the folder is missing or holds no metrics, and if `out` cannot be written or is something
    else than an earlier report.
    """
    elsewhere = f"; `ramet report {run} --out FILE` writes it elsewhere" if out is None else ""
    out = out or run / "report.html"
    _check_out(out)
    facts = overview(run)
    steps = collect_steps(run, find_splitter(tokenizer_folders(run)), max_bytes=MAX_BYTES)
    text = page({**facts, "notes": steps.notes}, steps)
    try:
        write_file(out, text.encode("ascii", "xmlcharrefreplace"), private=not run.stat().st_mode & 0o077)
    except OSError as error:
        raise ConfigError(f"report: {os_error_text(error)}{elsewhere}") from error
    return out


def _check_out(out: Path) -> None:
    """Reports alone are replaced. A link is none, wherever it leads."""
    if not os.path.lexists(out):
        return
    try:
        handle = os.open(out, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            is_report = MARKER in file.read(HEAD_BYTES)
    except OSError:
        is_report = False
    if not is_report:
        raise ConfigError(f"report: {out} is there already and is no report of Ramet's; name another file")


def page(facts: dict[str, object], steps: Steps) -> str:
    """The whole file. Asset files are ASCII, so only the title can hold anything else."""
    script = "(() => {\n" + '"use strict";\n' + "\n".join(_asset(name) for name in SCRIPTS) + "})();\n"
    style = "\n".join(_asset(name) for name in STYLES)
    data = [_data("overview", safe_json(facts)), *(_data("step", text) for text in steps.scripts)]
    return Template(_asset("page.html")).substitute(
        title=html.escape(f"{facts['name']} - Ramet"),
        script_hash=_hash(script),
        style_hash=_hash(style),
        style=style,
        script=script,
        data="\n".join(data),
    )


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
    """ASCII JSON that cannot end its script element or open another one."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(kind: str, text: str) -> str:
    return f'<script type="application/json" data-kind="{kind}">{text}</script>'


def _asset(name: str) -> str:
    return (files("ramet.report") / "assets" / name).read_text(encoding="ascii")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


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
