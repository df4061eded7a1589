"""`ramet play ["QUESTION"] [key=value …]`: its arguments, and questions read line by line."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from ramet.cli.terminal import Parser, print_problems, run_folder
from ramet.config.keys import JOBS
from ramet.config.sections import GROUPS
from ramet.errors import ConfigError
from ramet.event_loop import in_daemon_thread

OK, MASKED = 0, 2  # exit codes: infrastructure failed in a rollout
_SETTING = re.compile(r"[+~]*([\w./-]+)=")
STDIN = 0


def run(arguments: Sequence[str]) -> int:
    options = _parser().read(arguments)
    if options is None:
        return OK
    overrides = [text for text in options.words if _is_setting(text)]
    if options.source is not None:
        return _branch(options, overrides)
    if options.message is not None or options.result is not None:
        raise ConfigError("play: --message and --result are options of `ramet play --from RUN:ROLLOUT:TURN`")
    asked = [text for text in options.words if not _is_setting(text)]
    if len(asked) > 1:
        raise ConfigError(f"play: one question, got {len(asked)}: {', '.join(map(repr, asked))}; put it in quotes")
    _check_question(asked)
    from ramet.config.compose import compose
    from ramet.runs.hub_inputs import fetched

    resolved = fetched(compose(overrides, job="play", config_dir=options.config_dir))
    job = importlib.import_module("ramet.play.job")
    talks = not asked and options.n == 1 and _asks()
    screen = job.Talk() if talks else job.Screen(several=options.n > 1)
    how = {"rollouts": options.n, "top_p": options.top_p, "top_k": options.top_k}
    if asked:
        valid = job.run(resolved, _once(asked[0]), screen, **how)
    else:
        valid = job.run(resolved, _lines(talks=talks), screen, **how, refused=print_problems)
    return OK if valid else MASKED


def _branch(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Run another branch of a recorded rollout."""
    if len(overrides) < len(options.words) or (options.top_p, options.top_k) != (1.0, 0):
        raise ConfigError(
            "ramet play --from: takes no question, --top-p or --top-k: the rollout was recorded with its own"
        )
    branch = importlib.import_module("ramet.play.branch")
    place = branch.TurnAddress.read(options.source)
    valid = branch.run(
        place,
        run_folder(Path(place.run)),
        overrides,
        n=options.n,
        message=options.message,
        result=options.result,
        one_model=any(text.startswith("model.path=") for text in overrides),
        config_dir=options.config_dir,
    )
    return OK if valid else MASKED


def _is_setting(text: str) -> bool:
    """`x=2. What is x?` is a question: a word that is not a section, and a text of several words."""
    match = _SETTING.match(text)
    if match is None:
        return False
    key, value = match[1], text[match.end() :].strip()
    return "." in key or key in (*JOBS["play"], *GROUPS) or len(value.split()) < 2


def _check_question(asked: Sequence[str]) -> None:
    """Raise `ConfigError` for one that makes no prompt, or that cannot be read."""
    for question in asked:
        if not question.strip():
            raise ConfigError("play: the question is empty")
        if any("\ud800" <= char <= "\udfff" for char in question):  # bytes that Python could not read
            shown = question.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            raise ConfigError(f"cannot read {shown!r}: not UTF-8 here; set a UTF-8 locale, as in LC_ALL=C.UTF-8")
    if not asked and sys.stdin is None:
        raise ConfigError('play: no question, and the standard input is closed; ask one, as in ramet play "QUESTION"')


def _parser() -> Parser:
    parser = Parser(
        prog="ramet play",
        add_help=False,
        usage='ramet play ["QUESTION"] [--n N] [--top-p P] [--top-k K] [--config-dir DIR] [key=value …]\n'
        "       ramet play --from RUN:ROLLOUT:TURN [--message TEXT | --result TEXT] [--n N] [key=value …]",
        description="One prompt with tools, through the rollout code that trains: every turn is printed as it comes.",
        epilog="Without a question, lines of the standard input are questions. At a terminal each continues the "
        "conversation: /new begins another one, /quit or Ctrl-D ends. From a file or a pipe, and with --n, each line "
        "is a separate question. Keys are as for `ramet train` in run, model, engine, rollout, rollout_step and "
        "tools, as in model.path=MODEL tools=[python] run.seed=2. Nothing is written. Ends with exit code 2 if "
        "infrastructure failed in a rollout. --from continues a recorded rollout of `ramet train` or `ramet eval` "
        "from one of its turns, with the run's own keys, and draws the branch next to it.",
    )
    parser.add_argument("words", nargs="*", metavar="QUESTION", help="the user's message, in quotes")
    parser.add_argument("--n", type=int, default=1, help="how many rollouts of each question (default: 1)")
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="sample from the most likely tokens that have this share"
    )
    parser.add_argument("--top-k", type=int, default=0, help="sample from so many most likely tokens (default: 0, all)")
    parser.add_argument(
        "--from", dest="source", metavar="PLACE",
        help="RUN:STEP/TASK/ROLLOUT:TURN, a turn of a recorded rollout, counted from 0; TASK is its id, as the report "
        "and `ramet test` show it; the step of an evaluation is 0",
    )  # fmt: skip
    parser.add_argument("--message", metavar="TEXT", help="with --from: what the model writes in that turn instead")
    parser.add_argument("--result", metavar="TEXT", help="with --from: what the tool returns in that turn instead")
    parser.add_argument("--config-dir", type=Path, help="a folder with more presets and experiments")
    return parser


async def _once(question: str) -> AsyncIterator[str]:
    yield question


def _asks() -> bool:
    """Whether a person at a terminal is asked for each line."""
    return os.isatty(STDIN) and sys.stdout.isatty()


async def _lines(*, talks: bool) -> AsyncIterator[str | None]:
    """The lines of the standard input that are not blank, until its end or, at a terminal, `/quit`.

    In a conversation None stands for `/new`.
    """
    asks = _asks()
    if talks:
        print("Each line continues the conversation; /new begins another one, /quit or Ctrl-D ends.")
    with open(STDIN, "rb", buffering=0, closefd=False) as raw:  # a buffer's lock would be held at the program's exit
        while True:
            if asks:
                print("> ", end="", flush=True)
            line = await in_daemon_thread(raw.readline)
            text = line.decode("utf-8", "replace").strip()
            if not line or (asks and text == "/quit"):
                break
            if text:
                yield None if talks and text == "/new" else text
    if asks:
        print()
