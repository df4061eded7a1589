"""`ramet credit RUN`: its arguments, and its table."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ramet.cli.terminal import Parser, run_folder, say
from ramet.errors import ConfigError

COLUMNS = ("rollout", "turn", "call", "worth", "95 % interval", "before", "after", "continuations")
WIDEST = 40  # characters of a call


def credit(arguments: Sequence[str]) -> int:
    """measure what each tool call of recorded rollouts was worth"""
    options = _parser().read(arguments)
    if options is None:
        return 0
    overrides = [word for word in options.words if "=" in word]
    runs = [word for word in options.words if "=" not in word]
    if len(runs) != 1:
        raise ConfigError("credit: give one run, its directory or its name under runs/, as in ramet credit runs/first")
    folder = run_folder(Path(runs[0]))
    job = importlib.import_module("ramet_replay.credit.job")  # loads torch
    asked = job.CreditOptions(
        rollouts=options.rollouts,
        names=tuple(options.rollout or ()),
        step=options.step,
        samples=options.samples,
        model=options.model,
        checkpoint=options.checkpoint,
        budget_tokens=options.budget_tokens,
        out=options.out,
        overrides=overrides,
        config_dir=options.config_dir,
    )
    if options.dry_run:
        say(str(job.plan(folder, asked)))
        return 0
    _show(job.run(folder, asked))
    return 0


def _show(result: Any) -> None:
    from ramet.evaluate.tables import TextTable, print_tables

    if result.rows:
        caption = "worth = after - before; turns whose interval leaves 0 out have a *"
        print_tables([TextTable(columns=COLUMNS, rows=[_cells(row) for row in result.rows], caption=caption)])
    masked = sum(max(row["masked"]) for row in result.rows)
    if masked:
        say(f"masked continuations are left out; the points with the most had {masked} in all ({result.folder})")
    if result.n_reached < result.n_rollouts:
        say(
            f"the budget was used up after {result.n_reached} of {result.n_rollouts} rollouts; the same command with a "
            "larger --budget-tokens measures the others"
        )
    say(f"{result.tokens:,} tokens sampled; {result.file}")


def _cells(row: Mapping[str, Any]) -> list[str]:
    worth = row["worth"]
    is_clear = worth["low"] is not None and (worth["low"] > 0 or worth["high"] < 0)
    interval = "" if worth["low"] is None else f"{worth['low']:+.2f} to {worth['high']:+.2f}"
    return [
        row["rollout"],
        str(row["turn"] + 1),
        _call(row),
        f"{worth['mean']:+.2f}{' *' if is_clear else ''}",
        interval,
        f"{row['before']['mean']:.2f}",
        f"{row['after']['mean']:.2f}",
        "+".join(map(str, row["continuations"])),
    ]


def _call(row: Mapping[str, Any]) -> str:
    calls = "; ".join(f"{call['name']}({_arguments(call['arguments'])})" for call in row["calls"])
    text = calls or ("the end" if row["is_last"] else "no call")
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(value if isinstance(value, str) else json.dumps(value) for value in arguments.values())


def _parser() -> Parser:
    parser = Parser(
        prog="ramet credit",
        add_help=False,
        formatter_class=argparse.HelpFormatter,
        usage="ramet credit RUN [--rollouts N | --rollout STEP/GROUP/ID …] [--samples M] [key=value …]",
        description="What each tool call of recorded rollouts was worth: each rollout is continued M times from before "
        "and from after every turn, the continuations are scored by the run's rewards, and the difference of the means "
        "is written with its 95 % interval. Only reads the run.",
        epilog="RUN is the directory of a training or its name under runs/. The same command again repeats no finished "
        "point. `ramet report RUN` then shows the numbers at the calls. Keys are as for `ramet train`, and change what "
        "the run was configured with, as in engine.params.slots=32.",
    )
    parser.add_argument("words", nargs="*", metavar="RUN", help="the run, and keys that are changed")
    parser.add_argument("--rollouts", type=int, default=8, metavar="N", help="so many, spread over groups (default: 8)")
    parser.add_argument(
        "--rollout", action="append", metavar="STEP/GROUP/ID",
        help="this one, by its step, the number of its task in the step and its id: 3/2/0.1 is #s3/g2/r0.1 in the "
        "report's address; may be repeated",
    )  # fmt: skip
    parser.add_argument("--step", type=int, help="the step whose rollouts are measured (default: the last)")
    parser.add_argument("--samples", type=int, default=16, metavar="M", help="continuations per point (default: 16)")
    parser.add_argument("--model", type=Path, help="the weights that continue (default: the run's exported model)")
    parser.add_argument(
        "--checkpoint", type=int, metavar="STEP", help="or the weights of a checkpoint, which is exported"
    )
    parser.add_argument(
        "--budget-tokens", type=int, metavar="N", help="begin no further rollouts once N tokens are sampled"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder to write (default: RUN.credit)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be sampled at most; write nothing")
    parser.add_argument("--config-dir", type=Path, help="a folder with more presets and experiments")
    return parser
