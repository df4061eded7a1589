"""`ramet doctor [key=value …]`: the findings of all checks, as lines or as JSON."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.cli.terminal import Parser, say
from ramet.config.sections import without_model
from ramet.plugins.registry import BUILTIN
from ramet.runs.stopped import OK, USER
from ramet.types import Severity

if TYPE_CHECKING:
    from ramet.doctor.job import Examined


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet doctor",
        add_help=False,
        usage="ramet doctor [--offline] [--json] [--config-dir DIR] [key=value …]",
        description="Check this machine, its packages and its API keys, and suggest a fix for each problem.",
        epilog="Keys are those of a run, which is then looked at: experiment=NAME, tools=[search]. Packages add checks "
        "of their own. Nothing is changed. Ends with exit code 1 if there is a problem.",
    )
    parser.add_argument("overrides", nargs="*", help="as for the run")
    parser.add_argument("--offline", action="store_true", help="ask nothing of the network")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.add_argument("--config-dir", type=Path, help="a folder with more presets and experiments")
    options = parser.read(arguments)
    if options is None:
        return OK
    from ramet.config.compose import compose

    resolved = compose(without_model(options.overrides), job="doctor", config_dir=options.config_dir)
    examined = importlib.import_module("ramet.doctor.job").examine(resolved, offline=options.offline)
    say(as_json(examined) if options.json else "\n".join(lines(examined)))
    problems = [finding for part in examined for finding in part.findings if finding.severity is Severity.PROBLEM]
    return USER if problems else OK


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
