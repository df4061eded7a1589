"""The commands. Each reads its own arguments; jobs are imported only when they run."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ramet.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    summary: str
    run: Callable[[Sequence[str]], int]  # arguments -> exit code; raises RametError


@dataclass(frozen=True, slots=True)
class Job:
    """A command that takes a configuration. `module` holds `run(resolved) -> int`."""

    name: str
    module: str
    summary: str

    def run(self, arguments: Sequence[str]) -> int:
        found = self._parser().parse_intermixed_args(arguments)
        if found.help:
            from ramet.cli.job_help import job_help

            _say(job_help(self.name, self.summary, found.config_dir))
            return 0
        from ramet.config.compose import compose

        resolved = compose(found.overrides, job=self.name, config_dir=found.config_dir)
        if found.cfg:
            _say(resolved.text.rstrip("\n"))
            return 0
        code: int = importlib.import_module(self.module).run(resolved)
        return code

    def _parser(self) -> argparse.ArgumentParser:
        parser = _Parser(prog=f"ramet {self.name}", add_help=False)
        parser.add_argument("overrides", nargs="*")
        parser.add_argument("-h", "--help", action="store_true")
        parser.add_argument("--cfg", choices=["job"])
        parser.add_argument("--config-dir", type=Path)
        return parser


class _Parser(argparse.ArgumentParser):
    """Raises instead of leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")


def _say(text: str) -> None:
    """Print, and be quiet if the reader went away, as in `ramet plugins | head -1`."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its exit


def _report(arguments: Sequence[str]) -> int:
    parser = _Parser(prog="ramet report", add_help=False, description="One self-contained HTML file of a run.")
    parser.add_argument("run", nargs="?", type=Path, help="the run's directory, or its name under runs/")
    parser.add_argument("--out", type=Path, help="the file to write; default: report.html in the run's directory")
    parser.add_argument("-h", "--help", action="store_true")
    found = parser.parse_args(arguments)
    if found.help:
        _say(parser.format_help().rstrip("\n"))
        return 0
    if found.run is None:
        raise ConfigError("which run? give its directory, or its name under runs/")
    html = importlib.import_module("ramet.report.html")
    print(html.write_report(_run_folder(found.run), found.out))
    return 0


def _run_folder(run: Path) -> Path:
    for folder in (run, Path("runs") / run):
        if folder.is_dir():
            return folder
    raise ConfigError(
        f"no run {str(run)!r}: neither a directory nor a name under runs/ (working directory: {Path.cwd()})"
    )


def _plugins(arguments: Sequence[str]) -> int:
    parser = _Parser(prog="ramet plugins", add_help=False, description="What is installed, and what failed to load.")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("-h", "--help", action="store_true")
    found = parser.parse_args(arguments)
    if found.help:
        _say(parser.format_help().rstrip("\n"))
        return 0
    from ramet.cli.plugin_list import as_json, as_table
    from ramet.plugins import load_plugins

    infos = load_plugins().infos
    _say(as_json(infos) if found.json else as_table(infos))
    return 0


def _data(arguments: Sequence[str]) -> int:
    parser = _Parser(
        prog="ramet data",
        add_help=False,
        usage="ramet data inspect FILE… [--model DIR] [--prompts N] [key=value …]",
        description="What stands in data files: schema, sources, prompt lengths, duplicates, bad rows, prompts.",
        epilog="Keys of data, model, rollout_step and tools count, as in data.columns.prompt=question tools=[python].",
    )
    parser.add_argument("what", nargs="?", choices=["inspect"])
    parser.add_argument("files", nargs="*", help="parquet or JSON lines; default: data.train and data.valid")
    parser.add_argument("--model", type=Path, help="a model's folder: lengths in tokens, prompts as it sees them")
    parser.add_argument("--prompts", type=int, default=1, help="how many prompts to print of each file (default: 1)")
    parser.add_argument("-h", "--help", action="store_true")
    found = parser.parse_intermixed_args(arguments)
    if found.help or found.what is None:
        _say(parser.format_help().rstrip("\n"))
        return 0
    overrides = [text for text in found.files if "=" in text and not Path(text).exists()]
    files = [text for text in found.files if text not in overrides]
    data = importlib.import_module("ramet.cli.data")
    _say(data.inspect(files, overrides, model=found.model, prompts=found.prompts))
    return 0


def _new(arguments: Sequence[str]) -> int:
    new = importlib.import_module("ramet.cli.new")
    parser = _Parser(
        prog="ramet new",
        add_help=False,
        usage="ramet new KIND NAME [--dir DIR]",
        description="A plugin package of your own, with tests that pass.",
    )
    parser.add_argument("kind", nargs="?", metavar="KIND", help=new.describe_kinds())
    parser.add_argument("name", nargs="?", metavar="NAME", help="as in the configuration: count_words, exact_match")
    parser.add_argument("--dir", type=Path, help="the folder to make; default: ramet-NAME in the working directory")
    parser.add_argument("-h", "--help", action="store_true")
    found = parser.parse_args(arguments)
    if found.help:
        _say(parser.format_help().rstrip("\n"))
        return 0
    if found.kind is None or found.name is None:
        raise ConfigError("new: give a kind and a name, as in `ramet new tool count_words`; see `ramet new --help`")
    _say(new.make(found.kind, found.name, found.dir))
    return 0


_JOBS = (
    Job("train", "ramet.train.job", "teach a model by reinforcement learning"),
    Job("sft", "ramet.sft.job", "teach a model from traces"),
    Job("eval", "ramet.evaluate.job", "measure a model on benchmarks or data files"),
)
COMMANDS: dict[str, Command] = {job.name: Command(summary=job.summary, run=job.run) for job in _JOBS} | {
    "data": Command(summary="look at data files before training on them", run=_data),
    "report": Command(summary="write one HTML file about a run", run=_report),
    "plugins": Command(summary="list what is installed, and what failed to load", run=_plugins),
    "new": Command(summary="start a plugin package of your own", run=_new),
}
