"""`ramet runs [FOLDER]`: the runs of a folder, and what may be removed from them."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from ramet.cli.terminal import Parser, say, text_table
from ramet.errors import ConfigError
from ramet.history.prune import Removable, removable, remove
from ramet.history.summary import RESULTS, RunSummary, list_runs
from ramet.io.json_values import without_nan
from ramet.tracking.columns import amount, small

logger = logging.getLogger(__name__)
RUNS = Path("runs")
HEADER = ("NAME", "JOB", "STATE", "STEPS", "RESULT", "SIZE", "AGE")
LEGEND = "result: reward (train) or loss (sft) of the last step, score (eval); steps of an evaluation: tasks"
AGES = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))  # seconds, unit


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet runs",
        add_help=False,
        usage="ramet runs [FOLDER] [--json]\n       ramet runs [FOLDER] --prune [--yes] [--json]",
        description="List the runs of a folder, the newest first: job, state, steps done and planned, the last reward, "
        "loss or score, size on disk, and the time since the last sign of each. A run is running while its lock is "
        "held; stopped: by a signal; failed: by an error; killed: it left no note of its end.",
        epilog="--prune lists old checkpoints of finished runs (all but the newest complete one and the best) and what "
        "killed writers left over an hour ago, and removes them after --yes or a confirmation. Models, adapters, "
        "results, rollouts, metrics, answers that components keep (services/) and all files of a running run stay.",
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help=f"default: {RUNS}")
    parser.add_argument("--prune", action="store_true", help="list what may be removed")
    parser.add_argument("--yes", action="store_true", help="with --prune: remove it")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    options = parser.read(arguments)
    if options is None:
        return 0
    if options.yes and not options.prune:
        raise ConfigError("--yes: confirms --prune; add --prune")
    folder = RUNS if options.folder is None else options.folder
    if options.folder is None and not folder.exists():
        say("[]" if options.json else f"no runs here yet: there is no folder {str(folder)!r} in {Path.cwd()}")
        return 0
    if options.prune:
        _prune(folder, yes=options.yes, as_json=options.json)
        return 0
    summaries = list_runs(folder)
    if options.json:
        say(json.dumps(without_nan([summary.row() for summary in summaries]), indent=2))
    elif summaries:
        say(f"{_table(summaries)}\n{LEGEND}")
    else:
        say(f"no runs in {folder}")
    return 0


def _table(summaries: Sequence[RunSummary]) -> str:
    """Return the table; on a terminal long names lose their beginnings, so that a line fits."""
    now = time.time()
    rows = [_row(summary, now) for summary in summaries]
    if sys.stdout.isatty():
        columns = list(zip(HEADER, *rows, strict=True))
        others = sum(2 + max(map(len, column)) for column in columns[1:])
        width = max(8, shutil.get_terminal_size().columns - others)
        rows = [(_cut(name, width), *cells) for name, *cells in rows]
    return text_table(HEADER, rows)


def _row(summary: RunSummary, now: float) -> tuple[str, ...]:
    planned = "?" if summary.planned is None else str(summary.planned)
    result = "-" if summary.result is None else small(summary.result)
    steps = f"{summary.done}/{planned}" if summary.job in RESULTS else "-"
    age = _age(now - summary.changed)
    return summary.name, summary.job, summary.state.value, steps, result, amount(summary.size), age


def _age(seconds: float) -> str:
    """Return the time in only its largest unit: `3 d`, `5 min`."""
    seconds = max(0.0, seconds)
    length, unit = next((pair for pair in AGES if seconds >= pair[0]), AGES[-1])
    return f"{int(seconds // length)} {unit}"


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else f"…{name[len(name) - width + 1 :]}"


def _prune(folder: Path, *, yes: bool, as_json: bool) -> None:
    """List what may be removed; remove it if that is confirmed."""
    listed = removable(folder)
    if not as_json:
        say(_removable_table(listed) if listed else f"nothing to remove in {folder}")
    confirmed = bool(listed) and (yes or (not as_json and _is_confirmed()))
    removed = _remove(listed) if confirmed else []
    if as_json:
        say(json.dumps([_item(item, item in removed) for item in listed], indent=2))
    elif removed:
        say("\n".join(f"removed {item.path}" for item in removed))
        say(f"removed {_total(removed)}")
    elif listed:
        say("nothing was removed" if confirmed else "nothing was removed; --yes removes it")


def _remove(listed: Sequence[Removable]) -> list[Removable]:
    removed = list[Removable]()
    for run_folder, items in groupby(listed, key=lambda item: item.run):
        try:
            removed += remove(run_folder, list(items))
        except (ConfigError, OSError) as error:  # it has begun to work meanwhile, or is of another user
            logger.warning("left as it is: %s", error)
    return removed


def _removable_table(listed: Sequence[Removable]) -> str:
    rows = [(amount(item.size), item.why, str(item.path)) for item in listed]
    return f"{text_table(('SIZE', 'KIND', 'PATH'), rows)}\n{_total(listed)}"


def _total(items: Sequence[Removable]) -> str:
    runs = len({item.run for item in items})
    counted = f"{len(items)} item{'s' * (len(items) != 1)} of {runs} run{'s' * (runs != 1)}"
    return f"{amount(sum(item.size for item in items))} in {counted}"


def _item(item: Removable, is_removed: bool) -> dict[str, object]:
    return {"run": str(item.run), "path": str(item.path), "kind": item.why, "bytes": item.size, "removed": is_removed}


def _is_confirmed() -> bool:
    """Whether the user at a terminal answers yes; no without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return input("remove these? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
