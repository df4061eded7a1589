"""`ramet data from-rollouts RUN`: rows for SFT and preference pairs from the rollouts that a run recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ramet.cli.terminal import Parser, run_folder, say
from ramet.errors import ConfigError
from ramet.io.atomic import write_file
from ramet.io.json_lines import json_line
from ramet.runs.own_files import is_private
from ramet.sft.from_rollouts import RowChoice, rows_of_run

WHAT = {"sft": "rows for SFT", "pairs": "pairs"}
UNREADABLE = "several threads, or texts that no tool returned"
STEPS = re.compile(r"(\d+)(?:-(\d+))?")


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet data from-rollouts",
        add_help=False,
        usage="ramet data from-rollouts RUN [--sft FILE] [--pairs FILE] [--steps A-B] [--best N] [--min-reward R] …",
        description="Rows for `ramet sft` (the best rollouts of each group) and preference pairs (the best and the "
        "worst rollout after the same beginning) from the recorded rollouts of a training.",
    )
    parser.add_argument("run", type=Path, help="the directory of a training run")
    parser.add_argument("--sft", type=Path, help="file to write rows for SFT to, JSON lines")
    parser.add_argument("--pairs", type=Path, help="file to write pairs to, JSON lines: prompt, chosen, rejected")
    parser.add_argument("--steps", help="training steps, as 20 or 10-30 (default: all)")
    parser.add_argument("--best", type=int, default=1, help="most SFT rows of a group (default: 1)")
    parser.add_argument(
        "--min-reward", type=float, help="smallest reward of an SFT row (default: more than its group's mean)"
    )
    parser.add_argument(
        "--min-gap", type=float, default=0.5, help="smallest difference of a pair's rewards (default: 0.5)"
    )
    options = parser.read(arguments if arguments else ["--help"])
    if options is None:
        return 0
    outputs = {name: path for name in ("sft", "pairs") if (path := getattr(options, name)) is not None}
    _check(outputs, best=options.best, min_gap=options.min_gap)
    choice = RowChoice(
        best=options.best, min_reward=options.min_reward, min_gap=options.min_gap, steps=_steps(options.steps)
    )
    folder = run_folder(options.run)
    rows = rows_of_run(folder, choice)
    for name, path in outputs.items():
        write_file(path, b"".join(map(json_line, getattr(rows, name))), private=is_private(folder))
    made = "; ".join(f"{len(getattr(rows, name))} {WHAT[name]} in {path}" for name, path in outputs.items())
    left_out = f"; {rows.unreadable} rollouts left out: {UNREADABLE}" if rows.unreadable else ""
    say(f"{rows.groups} groups, {rows.rollouts} rollouts: {made}{left_out}")
    return 0


def _check(outputs: Mapping[str, Path], **numbers: Any) -> None:
    if not outputs:
        raise ConfigError("what is to be written? name a file: --sft FILE, --pairs FILE, or both")
    for name, path in outputs.items():
        if path.exists():
            raise ConfigError(f"--{name}={path}: is there already; name a new file")
        if not path.parent.is_dir():
            raise ConfigError(f"--{name}={path}: there is no folder {path.parent}")
    if len({path.resolve() for path in outputs.values()}) < len(outputs):
        raise ConfigError(f"--sft and --pairs are both {outputs['sft']}; name two files")
    if numbers["best"] < 1:
        raise ConfigError(f"--best={numbers['best']}: must be at least 1")
    if not numbers["min_gap"] > 0:
        raise ConfigError(f"--min-gap={numbers['min_gap']}: must be more than 0")


def _steps(text: str | None) -> tuple[int, int] | None:
    """Return the first and the last step."""
    if text is None:
        return None
    match = STEPS.fullmatch(text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ConfigError(f"--steps={text}: give a step or a range, as 20 or 10-30")
    return int(match[1]), int(match[2] or match[1])
