"""`ramet report`: one HTML file about a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ramet.cli.terminal import Parser, run_folder, say
from ramet.errors import ConfigError
from ramet.report.html import write_report


def run(arguments: Sequence[str]) -> int:
    parser = Parser(prog="ramet report", add_help=False, description="One self-contained HTML file of a run.")
    parser.add_argument("run", nargs="?", type=Path, help="the run's directory, or its name under runs/")
    parser.add_argument("--out", type=Path, help="the file to write; default: report.html in the run's directory")
    options = parser.read(arguments)
    if options is None:
        return 0
    if options.run is None:
        raise ConfigError("which run? give its directory, or its name under runs/")
    say(str(write_report(run_folder(options.run), options.out)))
    return 0
