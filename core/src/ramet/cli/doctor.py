"""`ramet doctor [key=value …]` examines the machine, `ramet doctor RUN` a run: findings as lines or as JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.cli.terminal import Parser, run_folder, say
from ramet.config.sections import without_model
from ramet.errors import ConfigError
from ramet.plugins.registry import BUILTIN
from ramet.runs.stopped import OK, USER
from ramet.types import Finding, Severity

if TYPE_CHECKING:
    from ramet.doctor.job import Examined

NAMES = ("run.name=", "run.root=", "model.path=", "data.train=", "data.valid=", "sft.data=", "experiment=")


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet doctor",
        add_help=False,
        usage="ramet doctor RUN [--all] [--json]\n"
        "       ramet doctor [--offline] [--json] [--config-dir DIR] [key=value …]",
        description="Check this machine, its packages and its API keys; or, with RUN, find why a run does not learn. "
        "Each problem comes with a fix.",
        epilog="RUN is a run's directory, or its name under runs/. Keys are of a run that is to be started: "
        "experiment=NAME, tools=[search]. Packages add checks of their own. Nothing is changed. Ends with exit code 1 "
        "if there is a problem.",
    )
    parser.add_argument("words", nargs="*", metavar="RUN|key=value", help="a run, or the keys of one")
    parser.add_argument("--all", action="store_true", help="all findings of a run, also those that others explain")
    parser.add_argument("--offline", action="store_true", help="ask nothing of the network")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.add_argument("--config-dir", type=Path, help="a folder with more presets and experiments")
    options = parser.read(arguments)
    if options is None:
        return OK
    named = [word for word in options.words if "=" not in word and not word.startswith("~")]
    if named:
        if len(options.words) > 1 or options.offline or options.config_dir is not None:
            raise ConfigError(
                f"doctor: {named[0]!r} is a run, and is examined without keys: ramet doctor {named[0]} [--all]"
            )
        return _examine_run(run_folder(Path(named[0])), everything=options.all, as_json=options.json)
    if options.all:
        raise ConfigError("--all: which run? give its directory, or its name under runs/")
    return _examine_machine(options)


def _examine_machine(options: argparse.Namespace) -> int:
    from ramet.config.compose import compose

    resolved = compose(without_model(options.words), job="doctor", config_dir=options.config_dir)
    examined = importlib.import_module("ramet.doctor.job").examine(resolved, offline=options.offline)
    say(as_json(examined) if options.json else "\n".join(lines(examined)))
    return _code(finding for part in examined for finding in part.findings)


def _examine_run(folder: Path, *, everything: bool, as_json: bool) -> int:
    diagnosis = importlib.import_module("ramet.doctor.diagnosis")
    findings: list[Finding] = diagnosis.diagnose(folder, most=None if everything else diagnosis.MOST)
    if as_json:
        say(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        say("\n".join(run_lines(folder, findings)))
    return _code(findings)


def _code(findings: Iterable[Finding]) -> int:
    return USER if any(finding.severity is Severity.PROBLEM for finding in findings) else OK


def run_lines(folder: Path, findings: Sequence[Finding]) -> Iterator[str]:
    """Each finding, and below it its fix, the rollouts that show it and its page; then how to open these rollouts, and
    what the run's command line set.
    """
    if not findings:
        yield f"{folder}: nothing found"
        return
    for finding in findings:
        yield f"{finding.severity}: {finding.what}"
        yield f"  {finding.text}"
        if finding.fix is not None:
            yield f"  fix: {finding.fix}"
        if finding.rollouts:
            yield f"  see: {'; '.join(map(str, finding.rollouts))}"
        if finding.page is not None:
            yield f"  page: {finding.page}"
    if any(finding.rollouts for finding in findings):
        yield f"rollouts: ramet report {folder}, and in the page the task of that step"
    if given := _settings(folder):
        yield f"set in this run: {' '.join(given)}"


def _settings(folder: Path) -> list[str]:
    """The keys of the run's command line that may matter: not its names and inputs."""
    file = folder / "overrides.txt"
    written = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return [shlex.quote(text) for text in written if not text.lstrip("+").startswith(NAMES)]


def as_json(examined: Sequence[Examined]) -> str:
    return json.dumps([asdict(part) for part in examined], indent=2)


def lines(examined: Sequence[Examined]) -> Iterator[str]:
    """A heading for each package, a line for each finding, and its fix below."""
    wide = max((len(finding.what) for part in examined for finding in part.findings), default=0)
    for part in examined:
        yield part.distribution if part.name == BUILTIN else f"{part.name} ({part.distribution})"
        for finding in part.findings:
            yield f"  {finding.severity:8} {finding.what:{wide}}  {finding.text}"
            if finding.fix is not None:
                yield f"  {'':8} {'':{wide}}  fix: {finding.fix}"
    counted = [sum(finding.severity is kind for part in examined for finding in part.findings) for kind in Severity]
    said = ", ".join(f"{n} {kind}" for n, kind in zip(counted, Severity, strict=True) if n)
    yield f"{said}" if said else "nothing was checked"
