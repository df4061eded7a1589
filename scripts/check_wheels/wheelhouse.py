"""The wheels of this repository, and next to them a wheel of everything that they and their tests need.

Environments are filled from this folder alone (`--no-index`), so the package index is asked once, and what an
environment holds is what the wheels declare.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 600
# Nothing of the caller's may leak into an environment: its modules, its plugins, its options.
PRIVATE = ("PYTHON", "RAMET_", "PYTEST_", "VIRTUAL_ENV", "PIP_FIND_LINKS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheelhouse:
    """Where the wheels are. `builder` is a Python that builds more of them (with `--no-build-isolation`)."""

    folder: Path
    wheels: dict[str, Path]  # name of the distribution -> its wheel
    builder: Path


class CommandFailed(Exception):
    """With the command and its output."""


def build(work: Path, packages: list[Path], built: Path | None = None) -> Wheelhouse:
    """Build the wheels of the packages, unless `built` has them. Raises `CommandFailed`."""
    projects = [tomllib.loads((package / "pyproject.toml").read_text()) for package in packages]
    builder = make_environment(work / "builder")
    run(pip(builder, "install", *sorted({need for p in projects for need in p["build-system"]["requires"]})))
    if built is None:
        built = work / "built"
        run(pip(builder, "wheel", "--no-build-isolation", "--no-deps", "-w", str(built), *map(str, packages)))
    wheels = {project["project"]["name"]: _wheel(built, project["project"]) for project in projects}
    own = ("--find-links", str(built))  # they may need each other
    run(pip(builder, "wheel", *own, "-w", str(work / "wheels"), *(f"{wheel}[test]" for wheel in wheels.values())))
    return Wheelhouse(folder=work / "wheels", wheels=wheels, builder=builder)


def _wheel(folder: Path, project: dict[str, str]) -> Path:
    pattern = f"{project['name'].replace('-', '_')}-{project['version']}-*.whl"
    found = [*folder.glob(pattern)]
    if len(found) != 1:
        raise CommandFailed(f"{len(found)} wheels {pattern} in {folder}, where one is expected")
    return found[0]


def make_environment(folder: Path) -> Path:
    """An empty virtual environment; returns its Python. pip works on it from outside, which saves its installation."""
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    return folder / "bin" / "python"


def pip(python: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", str(python), *arguments]


def install(python: Path, wheelhouse: Wheelhouse, *what: str) -> None:
    """Install from the wheelhouse and nowhere else. Raises `CommandFailed`."""
    run(
        pip(python, "install", "--no-compile", "--no-index", "--find-links", str(wheelhouse.folder), *what),
        env=clean_environment(),
    )


def clean_environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(PRIVATE)} | more


def run(command: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Standard output. Raises `CommandFailed` with the whole output of the command."""
    try:
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"{' '.join(command)}: not done after {TIMEOUT_S} s\n{error.output or ''}") from error
    if done.returncode != 0:
        raise CommandFailed(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout
