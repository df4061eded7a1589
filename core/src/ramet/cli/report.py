"""`ramet report`: one HTML file about a run, or about several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ramet.cli.terminal import Parser, run_folder, say
from ramet.errors import ConfigError
from ramet.report.html import write_comparison, write_report


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet report",
        add_help=False,
        usage="ramet report RUN [RUN …] [--out FILE]",
        description="One self-contained HTML file of a run; of several runs: their curves over each other, the keys "
        "that differ, and the paired differences of evaluations.",
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="a run's directory, or its name under runs/")
    parser.add_argument(
        "--out",
        type=Path,
        help="the file to write; default: the run's report.html, or compare-A-B.html next to the first run",
    )
    options = parser.read(arguments)
    if options is None:
        return 0
    if not options.runs:
        raise ConfigError("which run? give its directory, or its name under runs/")
    runs = [run_folder(run) for run in options.runs]
    say(str(write_report(runs[0], options.out) if len(runs) == 1 else write_comparison(runs, options.out)))
    return 0
