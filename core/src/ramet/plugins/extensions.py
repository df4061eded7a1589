"""Additions of packages to the seven hooks: commands, trackers and checks, through separate entry points.

Group `ramet.commands`: a function `(arguments: Sequence[str]) -> int | None`. It gets what follows its name, prints,
and returns the exit code (None is 0); the first line of its docstring is its summary. Group `ramet.trackers`: a
function `(run: TrackedRun) -> Tracker`. Group `ramet.doctor`: a function `(context: DoctorContext) ->
Iterable[Finding]`, which `ramet doctor` calls. Group `ramet.diagnoses`: a function `(run: StoredRun) ->
Iterable[Finding]`, which `ramet doctor RUN` calls. Names of the core cannot be taken, and a name that two packages
offer is refused where it is used. Nothing is imported before it is used, except by `ramet --help`, which asks for
summaries.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError, PluginError
from ramet.plugins.other_systems import served_instead

COMMANDS, TRACKERS, DOCTOR = "ramet.commands", "ramet.trackers", "ramet.doctor"
DIAGNOSES = "ramet.diagnoses"


@dataclass(frozen=True, slots=True)
class ExtensionEntry:
    """One entry point."""

    name: str
    distribution: str
    point: EntryPoint

    def load(self) -> Any:
        """The function. Raises `PluginError` that names the distribution if it cannot be imported or called."""
        try:
            function = self.point.load()
        except (Exception, SystemExit) as error:  # a package may do anything at import
            raise PluginError(f"{self}: {type(error).__name__}: {error}") from error
        if not callable(function):
            raise PluginError(f"{self}: must be a function, got {function!r:.80}")
        return function

    def __str__(self) -> str:
        return f"{self.point.group.removeprefix('ramet.').removesuffix('s')} {self.name!r} of {self.distribution}"


def extensions(group: str) -> list[ExtensionEntry]:
    """Return everything that is installed in this group, by name."""
    entries = [ExtensionEntry(p.name, p.dist.name if p.dist else "unknown", p) for p in entry_points(group=group)]
    return sorted(entries, key=lambda entry: (entry.name, entry.distribution))


def package_folders(package: str) -> list[Path]:
    """Return the folders of a package of presets; empty without the package. Nothing is imported but its parents."""
    try:
        spec = find_spec(package)
    except Exception:  # a broken plugin is listed with its reason, and its presets are part of it
        spec = None
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []


def extension(group: str, name: str, own_names: Collection[str]) -> ExtensionEntry:
    """Return the entry of this name; `own_names` are the core's.

    Raises `ConfigError`, with the known names, for an unknown one, and `PluginError` if several packages offer it.
    """
    entries = extensions(group)
    offered = [entry for entry in entries if entry.name == name]
    if len(offered) > 1:
        packages = " and by ".join(entry.distribution for entry in offered)
        raise PluginError(f"{offered[0].point.group}: {name!r} is offered by {packages}; uninstall one")
    if offered:
        return offered[0]
    names = [*own_names, *(entry.name for entry in entries if entry.name not in own_names)]
    what = group.removeprefix("ramet.")
    close = difflib.get_close_matches(name, names, n=1)
    hint = served_instead(what, name) or (f" Did you mean {close[0]!r}?" if close else "")
    raise ConfigError(f"no {what.removesuffix('s')} {name!r}.{hint} {what.capitalize()}: {', '.join(names)}")
