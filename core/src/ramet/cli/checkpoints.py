"""`ramet checkpoints RUN`: a run's checkpoints, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from ramet.cli.terminal import Parser, run_folder, say, text_table
from ramet.errors import ConfigError
from ramet.policy.checkpoint.checkpoint_list import CheckpointEntry, list_checkpoints
from ramet.sft.checkpoints import list_sft_checkpoints
from ramet.sft.output import finished_training
from ramet.tracking.columns import amount

FOLDER = "checkpoints"
HEADER = ("NAME", "STEP", "SIZE", "WRITTEN", "STATE")


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet checkpoints",
        add_help=False,
        description="List a run's checkpoints. Every file is read, and its hash or checksum compared.",
        epilog="Ends with exit code 1 if no checkpoint verifies.",
    )
    parser.add_argument("run", nargs="?", type=Path, help="the run's directory, or its name under runs/")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    options = parser.read(arguments)
    if options is None:
        return 0
    if options.run is None:
        raise ConfigError("which run? give its directory, or its name under runs/")
    run = run_folder(options.run)
    entries = inventory(run)
    say(as_json(entries) if options.json else as_table(run, entries))
    return 0 if any(entry.verified for entry in entries) else 1


def inventory(run: Path) -> list[CheckpointEntry]:
    """Return what the run's folder of checkpoints contains, oldest first. Raises `ConfigError` if there is no such
    folder."""
    folder = run / FOLDER
    if not folder.is_dir():
        raise ConfigError(f"{run}: not the directory of a run: it has no folder {FOLDER}/")
    entries = list_checkpoints(folder) or list_sft_checkpoints(folder)
    return entries if finished_training(run) is None else [replace(entry, resume=False) for entry in entries]


def as_json(entries: Sequence[CheckpointEntry]) -> str:
    return json.dumps([asdict(entry) | {"written": _time(entry)} for entry in entries], indent=2)


def as_table(run: Path, entries: Sequence[CheckpointEntry]) -> str:
    """One line each, then every problem of the broken ones, then what a resume would do."""
    table = [text_table(HEADER, map(_row, entries))] if entries else []
    problems = [f"  {problem}" for entry in entries for problem in entry.problems]
    return "\n".join([*table, *problems, _resume(run, entries)])


def _resume(run: Path, entries: Sequence[CheckpointEntry]) -> str:
    if (done := finished_training(run)) is not None:
        return f"{run}: finished after {done.steps} steps, model in {done.model}; the same command leaves it as it is"
    taken = next((entry for entry in entries if entry.resume), None)
    if taken is None:
        return f"{run}: no checkpoint that verifies; a resume begins at the first step"
    return f"a resume continues after step {taken.step}"


def _row(entry: CheckpointEntry) -> tuple[str, ...]:
    state = "verified" if not entry.problems else "BROKEN"
    if entry.leftover:
        state = "left by a killed save, or being written"
    if entry.resume:
        state += ", taken by a resume"
    if entry.score is not None:
        state += f", {'best by ' if entry.best else ''}{entry.score.metric}: {entry.score.value:.4g}"
    return entry.name, str(entry.step), amount(entry.size), _time(entry).partition("+")[0].replace("T", " "), state


def _time(entry: CheckpointEntry) -> str:
    return datetime.fromtimestamp(entry.written, UTC).astimezone().isoformat(timespec="seconds")
