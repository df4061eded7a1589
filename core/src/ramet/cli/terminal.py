"""Common parts of all commands: an argument parser that raises, printing, tables, and problems as lines."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn

from ramet.errors import ConfigError, ConfigErrors, RametError
from ramet.io.json_values import visible
from ramet.tracking.log import harmless

WIDEST = 100_000  # characters of a table's line: none is cut
OF_A_RUN = ("manifest.json", "metrics.jsonl", "results.json")  # a run's directory has at least one of them
MOST_NAMED = 8  # runs in a message


class Parser(argparse.ArgumentParser):
    """Raises instead of leaving the process. Made with `add_help=False`."""

    def read(self, arguments: Sequence[str]) -> argparse.Namespace | None:
        """Return options and positions in any order; None if it was `--help`, which is then answered."""
        self.add_argument("-h", "--help", action="store_true")
        options = self.parse_intermixed_args(arguments)
        if not options.help:
            return options
        say(self.format_help().rstrip("\n"))
        return None

    def parse_known_intermixed_args(self, *arguments: Any, **named: Any) -> Any:
        """Parse as argparse does, unless `asked_parser` asks for the parser itself."""
        if _asked.get():
            raise _Asked(self)
        return super().parse_known_intermixed_args(*arguments, **named)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")


class _Asked(Exception):
    """Holds the parser of a command that is not to run."""


_asked: ContextVar[bool] = ContextVar("asked", default=False)


def asked_parser(command: Callable[[Sequence[str]], int]) -> Parser | None:
    """The parser that a command reads its arguments with, for completion; the command ends there."""
    token = _asked.set(True)
    try:
        command(["--help"])
    except _Asked as asked:
        parser: Parser = asked.args[0]
        return parser
    finally:
        _asked.reset(token)
    return None


def say(text: str) -> None:
    """Print, and be quiet if the reader went away, as in `ramet plugins | head -1`.

    Raises `OSError`, which names the standard output, if that is a file on a full disk.
    """
    try:
        print(visible(text), flush=True)
    except BrokenPipeError:
        settle_streams()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def complain(text: str) -> None:
    """A line on stderr, if it can be written there: a log on a full disk must not hide the exit code."""
    with contextlib.suppress(OSError):
        print(harmless(text), file=sys.stderr, flush=True)


def settle_streams() -> None:
    """Drop what could not be written, or the interpreter complains at its exit and changes the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns two spaces apart without lines, so that a table reads the same in a terminal, a pipe and `grep`."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in header:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(file=io.StringIO(), color_system=None, width=WIDEST)
    with console.capture() as printed:
        console.print(table)
    return "\n".join(line.rstrip() for line in printed.get().splitlines())


def print_problems(error: RametError) -> None:
    for problem in error.problems if isinstance(error, ConfigErrors) else [str(error)]:
        complain("error: " + problem.replace("\n", "\n       "))


def accept_any_text() -> None:
    """Write out what the locale has no character for (as stderr does by itself), instead of failing on it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def run_folder(run: Path) -> Path:
    """Return the directory of a run that is given as one, or by its name under runs/.

    Raises `ConfigError` for no directory, and for one that only contains runs, as a pipeline's does.
    """
    for folder in (run, Path("runs") / run):
        if not folder.is_dir():
            continue
        runs = sorted(str(file.parent) for file in folder.glob("*/manifest.json"))
        if runs and not any((folder / name).exists() for name in OF_A_RUN):
            listed = ", ".join(runs[:MOST_NAMED]) + (", …" if len(runs) > MOST_NAMED else "")
            raise ConfigError(
                f"{folder} is not a run, but a folder of runs, as of a pipeline; name one of them: {listed}"
            )
        return folder
    raise ConfigError(
        f"no run {str(run)!r}: neither a directory nor a name under runs/ (working directory: {Path.cwd()})"
    )
