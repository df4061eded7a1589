"""The report of a run as one HTML file that opens from disk and asks the network for nothing.

Rollouts are text that a model and the web wrote, so none of it may act: data is in the page as escaped ASCII JSON, the
script writes it with `textContent` only, and a content security policy allows exactly this script and this style.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from ramet.errors import ConfigError
from ramet.io.atomic import write_file
from ramet.io.os_errors import os_error_text
from ramet.report.comparison import comparison, file_name
from ramet.report.data import ReportPhases, overview, stored_config, tokenizer_folders
from ramet.report.evaluation import find_evaluation
from ramet.report.rollouts import collect_steps, safe_json
from ramet.report.tree import find_splitter
from ramet.report.verdict import verdict
from ramet.runs.own_files import is_private

MAX_BYTES = 40_000_000  # of recorded rollouts in one file
MARKER = b'<meta name="generator" content="ramet report">'
HEAD_BYTES = 1024  # of a page: the marker is among them
_FIRST = ("text.js", "frame.js", "curves.js")  # scripts of every report
SCRIPTS = (*_FIRST, "evaluation.js", "highlights.js", "overview.js", "tasks.js", "lanes.js", "tree.js", "main.js")
COMPARISON_SCRIPTS = (*_FIRST, "comparison.js")
STYLES = ("page.css", "rollouts.css")


def write_report(run: Path, out: Path | None = None, phases: ReportPhases | None = None) -> Path:
    """Write the report of a run directory to `out`, by default its `report.html`, and return the path. `phases`: other
    runs that it shows too.

    Raises `ConfigError` if the folder is missing or holds neither metrics nor results, and if `out` cannot be written
    or is not an earlier report.
    """
    elsewhere = f"; `ramet report {run} --out FILE` writes it elsewhere" if out is None else ""
    out = out or run / "report.html"
    check_out(out)
    config = stored_config(run)
    measured = run if phases is None or phases.evaluation is None else phases.evaluation
    evaluation = find_evaluation(measured, stored_config(measured))
    steps = collect_steps(run, evaluation, find_splitter(tokenizer_folders(run, config)), max_bytes=MAX_BYTES)
    facts = overview(run, evaluation, phases, config, steps.counts, verdict(run))
    text = page({**facts, "notes": steps.notes}, SCRIPTS, steps.scripts)
    _write(out, text, [run], elsewhere)
    return out


def write_comparison(runs: Sequence[Path], out: Path | None = None) -> Path:
    """Write one page about several runs to `out`, by default `compare-A-B.html` next to the first, and return the path.

    Raises `ConfigError` as `comparison` does, and if `out` cannot be written or is not a report.
    """
    elsewhere = "; `--out FILE` writes it elsewhere" if out is None else ""
    out = out or runs[0].parent / file_name(runs)
    check_out(out)
    _write(out, page(comparison(runs), COMPARISON_SCRIPTS), runs, elsewhere)
    return out


def _write(out: Path, text: str, runs: Sequence[Path], elsewhere: str) -> None:
    """Write the page, only for its owner if one of the runs is."""
    private = any(map(is_private, runs))
    try:
        write_file(out, text.encode("ascii", "xmlcharrefreplace"), private=private)
    except OSError as error:
        raise ConfigError(f"report: {os_error_text(error)}{elsewhere}") from error


def check_out(out: Path) -> None:
    """Raise `ConfigError` for a file that is not a report. A link is refused, wherever it leads."""
    if not os.path.lexists(out):
        return
    try:
        handle = os.open(out, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            is_report = MARKER in file.read(HEAD_BYTES)
    except OSError:
        is_report = False
    if not is_report:
        raise ConfigError(f"report: {out} is there already and is not a report of Ramet's; name another file")


def page(facts: Mapping[str, object], scripts: Sequence[str], steps: Sequence[str] = ()) -> str:
    """The complete file, of these scripts. Asset files are ASCII, so only the title can have other characters."""
    script = "(() => {\n" + '"use strict";\n' + "\n".join(_asset(name) for name in scripts) + "})();\n"
    style = "\n".join(_asset(name) for name in STYLES)
    data = [_data("overview", safe_json(facts)), *(_data("step", text) for text in steps)]
    return Template(_asset("page.html")).substitute(
        title=html.escape(f"{facts['name']} - Ramet"),
        script_hash=_hash(script),
        style_hash=_hash(style),
        style=style,
        script=script,
        data="\n".join(data),
    )


def _data(kind: str, text: str) -> str:
    return f'<script type="application/json" data-kind="{kind}">{text}</script>'


def _asset(name: str) -> str:
    return (files("ramet.report") / "assets" / name).read_text(encoding="ascii")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
