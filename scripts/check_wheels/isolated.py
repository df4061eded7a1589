"""One package in an environment of its own, or several in one: installed, looked at from inside, and tested."""

from __future__ import annotations

import json
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wheelhouse import CommandFailed, Wheelhouse, clean_environment, install, make_environment, pip, run

INSIDE = Path(__file__).resolve().parent / "inside"
# Tests of layers whose code imports no extra, also not inside functions (`tests/test_layers.py`): they give the same
# result in every environment, and `make test` runs them.
SAME_EVERYWHERE = ("config", "contract", "helpers")


@dataclass(slots=True, kw_only=True)
class Result:
    """What was found. `needs_extra` and `skipped` count what an absent extra keeps from running, by extra."""

    package: Path
    name: str
    install_s: float = 0.0
    modules: int = 0
    needs_extra: dict[str, int] = field(default_factory=dict)
    composed: list[str] = field(default_factory=list)
    passed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def row(self) -> tuple[str, ...]:
        return (
            self.name,
            f"{self.install_s:.1f} s",
            f"{self.modules}{_of_which(self.needs_extra, 'need')}",
            f"{len(self.composed)} compose",
            f"{self.passed} passed{_of_which(self.skipped, 'skipped:')}",
            "WRONG" if self.problems else "ok",
        )


def project_of(package: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    return project


def _of_which(counts: dict[str, int], verb: str) -> str:
    return "".join(f" ({n} {verb} {what})" for what, n in sorted(counts.items()))


def check(packages: list[Path], wheelhouse: Wheelhouse, work: Path) -> list[Result]:
    """Check packages in one environment. Never raises for what is wrong with one: it is in `problems`."""
    results = [Result(package=package, name=project_of(package)["name"]) for package in packages]
    try:
        _check(results, wheelhouse, work)
    except CommandFailed as error:
        results[0].problems.append(str(error))
    return results


def _check(results: list[Result], wheelhouse: Wheelhouse, work: Path) -> None:
    python = make_environment(work / "environments" / results[0].name)
    wheels = [str(wheelhouse.wheels[result.name]) for result in results]
    started = time.monotonic()
    install(python, wheelhouse, *wheels)  # bare: what only their tests need must not help them
    install_s = time.monotonic() - started
    run(pip(python, "check"))
    for result in results:
        result.install_s = install_s
        _look(result, [other.name for other in results], python, _empty(work / "empty" / result.name))
    install(python, wheelhouse, *(f"{wheel}[test]" for wheel in wheels))
    for result in results:
        _test(result, python, _empty(work / "empty" / f"{result.name}-tests"), work / f"{result.name}-tests.json")


def _empty(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _look(result: Result, together: list[str], python: Path, empty: Path) -> None:
    listed = json.loads(run([str(python.with_name("ramet")), "plugins", "--json"], cwd=empty, env=clean_environment()))
    own = [info for info in listed if info["distribution"] == result.name]
    offers = project_of(result.package).get("entry-points", {})
    if "ramet" in offers and not own:
        result.problems.append("`ramet plugins` does not list it")
    result.problems += [f"plugin {info['name']!r} is BROKEN: {info['broken']}" for info in own if info["broken"]]
    probe = [str(python), "-I", str(INSIDE / "probe_wheel.py"), result.name, *together]
    found = json.loads(run(probe, cwd=empty, env=clean_environment()).splitlines()[-1])
    result.modules, result.needs_extra = found["modules"], found["needs_extra"]
    result.composed = found["composed"]
    result.problems += found["problems"]


def _test(result: Result, python: Path, empty: Path, summary: Path) -> None:
    command = [str(python), "-m", "pytest", str(result.package / "tests"), "--import-mode=importlib", "-m", "not slow"]
    command += [f"--ignore={result.package / 'tests' / folder}" for folder in SAME_EVERYWHERE]
    command += ["-p", "absent_extras", "-p", "no:cacheprovider", "--absent-extras-of", result.name]
    command += ["--absent-extras-summary", str(summary)]
    try:
        run(command, cwd=empty, env=clean_environment(PYTHONPATH=str(INSIDE)))
    except CommandFailed as error:
        result.problems.append(f"its tests fail: {error}")
    if summary.is_file():
        found = json.loads(summary.read_text())
        result.passed, result.skipped = found["passed"], found["skipped"]
    if not result.passed:
        result.problems.append("no test of it passed")
