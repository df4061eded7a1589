"""Steps and files of a run, found without writing anything: the output of `--dry-run`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.config.checks import RUN_NAME, RUN_NAME_RULE
from ramet.config.resolved import Resolved
from ramet.config.schema import Config, RewardConfig, ToolConfig
from ramet.errors import ConfigError, MissingHere
from ramet.runs.lock import is_held
from ramet.runs.manifest import MANIFEST, Manifest
from ramet.runs.own_files import check_run_folder
from ramet.runs.resume import RunState, check_resume
from ramet.tracking.trackers import tracker_folders

if TYPE_CHECKING:
    from ramet.planning.memory import MemoryPlan  # torch

Entries = Mapping[str, ToolConfig] | Mapping[str, RewardConfig]
RECORDS = ("LOCK", "config.yaml", "overrides.txt", MANIFEST, "metrics.jsonl", "run.log")


def records(config: Config) -> list[str]:
    """Names of what every job writes into the run's directory."""
    return [*RECORDS, *tracker_folders(config)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The directory that a run would work in."""

    path: Path  # of a run without a name: the pattern of its name
    resumed: bool
    problems: Sequence[str]

    def __str__(self) -> str:
        return f"{self.path} ({'continues with its files' if self.resumed else 'new'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """Facts by name, in order, each of one or more lines, and the files that would be written."""

    job: str
    facts: Mapping[str, str]
    files: Sequence[str]

    def __str__(self) -> str:
        shown = {name: text for name, text in self.facts.items() if text} | {"would write": "\n".join(self.files)}
        width = max(map(len, shown))
        below = "\n" + " " * (width + 4)
        facts = [f"  {name:{width}}  {text.replace(chr(10), below)}" for name, text in shown.items()]
        return "\n".join([f"ramet {self.job} would do this, and has done nothing:", *facts])


def plan_run(resolved: Resolved, manifest: Manifest) -> RunPlan:
    """Plan where the run would go, and why it could not. Only reads."""
    root, name = Path(resolved.config.run.root), resolved.config.run.name
    if name is None:
        path = root / "<date>-<time>-<word>"
        return RunPlan(path=path, resumed=False, problems=not_writable(path, "run.root"))
    path = root / name
    if not RUN_NAME.fullmatch(name):
        return RunPlan(path=path, resumed=False, problems=[f"run.name={name}: {RUN_NAME_RULE}"])
    try:
        check_run_folder(path)
    except ConfigError as error:
        return RunPlan(path=path, resumed=False, problems=[str(error)])
    problems = not_writable(path, "run.root")
    if is_held(path / "LOCK"):
        problems.append(
            f"run directory {str(path)!r} is in use by another process; choose another run.name, or wait for it"
        )
    resumed = (path / MANIFEST).is_file()
    if resumed:
        new = RunState(config=resolved.text, manifest=manifest)
        try:
            problems += check_resume(RunState.read(path), new, allow=resolved.config.run.allow_config_change)
        except ConfigError as error:
            problems.append(str(error))
    return RunPlan(path=path, resumed=resumed, problems=problems)


def not_writable(path: Path, key: str) -> list[str]:
    """Why `path` could not be made or written to, judged by the nearest folder that exists."""
    nearest = nearest_folder(path)
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return []
    return [f"{key}: {str(path)!r} cannot be written, because {str(nearest)!r} is not a folder that can be written to"]


def nearest_folder(path: Path) -> Path:
    """Return `path`, or the nearest of its parents that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def not_checked(missing: Sequence[MissingHere]) -> str:
    """Checks that a plan for another machine could not make on this one; empty if it made all."""
    listed = [f"{problem.missing}: {problem.unchecked}" for problem in missing if problem.unchecked]
    return "\n".join(["because this machine has no", *listed]) if listed else ""


def model_in_words(config: Config, memory: MemoryPlan | str) -> str:
    size = "" if isinstance(memory, str) else f"{memory.inputs.shape.n_parameters:,} parameters, "
    return f"{config.model.path} ({size}{config.model.dtype})"


def entries_in_words(entries: Entries) -> str:
    """List the chosen names, instances with their component: `python, big (python)`."""
    return (
        ", ".join(name if entry.use is None else f"{name} ({entry.use})" for name, entry in entries.items()) or "none"
    )
