"""Sources of plugins, before they are loaded: entry points of the group `ramet`, and named modules.

Environment: `RAMET_BLOCK_PLUGINS=a,b` skips plugins by name, of which each must be installed; `RAMET_PLUGINS=module,…`
names importable modules that are not installed as distributions (experiments, Ray `py_modules`).
"""

from __future__ import annotations

import difflib
import functools
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError, PluginError
from ramet.plugins.registry import BUILTIN

GROUP = "ramet"
MODULES = "RAMET_PLUGINS"
PRESETS = "ramet.conf"  # entry points of packages with presets, which may ship only these
# Names that moved to a new package, and the modules that offered them in earlier wheels of others.
APART = {"arpo_release": "ramet-release", "aepo_release": "ramet-release", "aepo_softmax": "ramet-release"}
OUTDATED = {"ramet_arpo.release", "ramet_aepo.release"}


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of one plugin, before it is loaded."""

    name: str
    module: str
    distribution: str
    version: str
    load: Callable[[], Any]


def installed_sources() -> Iterator[Source]:
    points = sorted(entry_points(group=GROUP), key=lambda p: (p.name, _distribution(p)[0]))
    modules = _names(MODULES)
    blocked = _blocked([*(point.name for point in points), *(p.name for p in entry_points(group=PRESETS)), *modules])
    points = [point for point in points if point.name not in blocked]
    _refuse_outdated(points)
    yield core_source()
    for point in points:
        yield _entry_point_source(point)
    for module in modules:
        if module not in blocked:
            yield module_source(module, module, f"module {module}")


def _refuse_outdated(points: Sequence[EntryPoint]) -> None:
    """Raise `ConfigError` for wheels of before `APART`: they offer the same names, and need what the core had then."""
    old = {
        point.dist.name: point.dist.version
        for point in points
        if point.value in OUTDATED and point.dist and Path(str(point.dist.locate_file(_folder(point)))).is_dir()
    }
    if old:
        raise ConfigError(
            f"too old for this Ramet: {', '.join(f'{name} {version}' for name, version in old.items())}; what they "
            f"had as released is a separate package now: pip install --upgrade {' '.join(old)} ramet-release"
        )


def _folder(point: EntryPoint) -> str:
    return point.value.replace(".", "/")


def how_to_install(name: str) -> str:
    """Return `Install it with: pip install …` for a name of `APART` whose package is absent; otherwise nothing."""
    package = APART.get(name)
    is_there = package is None or find_spec(package.replace("-", "_")) is not None
    return "" if is_there else f"Install it with: pip install {package}"


def core_source() -> Source:
    return module_source(BUILTIN, "ramet.builtin", "ramet")


def _blocked(installed: Sequence[str]) -> list[str]:
    """Return the blocked names. A name that blocks nothing is an error: its component would run unblocked."""
    blocked = blocked_plugins()
    for name in blocked:
        if name == BUILTIN:
            raise ConfigError(f"RAMET_BLOCK_PLUGINS: {BUILTIN!r} is Ramet itself and cannot be blocked")
        if name not in installed:
            close = difflib.get_close_matches(name, installed, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            listed = ", ".join(sorted(set(installed))) or "none"
            raise ConfigError(f"RAMET_BLOCK_PLUGINS: no plugin named {name!r} is installed.{hint} Installed: {listed}")
    return blocked


def blocked_plugins() -> list[str]:
    """Return the names of `RAMET_BLOCK_PLUGINS`, as they were given."""
    return _names("RAMET_BLOCK_PLUGINS")


def _names(variable: str) -> list[str]:
    return [part.strip() for part in os.environ.get(variable, "").split(",") if part.strip()]


def _distribution(point: EntryPoint) -> tuple[str, str]:
    """Return name and version. A folder without METADATA has neither, whatever its type says."""
    if point.dist is None:
        return "unknown", ""
    return point.dist.name or "unknown", point.dist.version or ""


def _entry_point_source(point: EntryPoint) -> Source:
    distribution, version = _distribution(point)
    return Source(point.name, point.value, distribution, version, point.load)


def module_source(name: str, module: str, distribution: str) -> Source:
    try:
        installed_version = version(distribution)
    except PackageNotFoundError:
        installed_version = ""
    return Source(name, module, distribution, installed_version, functools.partial(_import, module))


def _import(module: str) -> Any:
    """Import a module. Raises `PluginError` where a file was named, or the working directory is not searched."""
    try:
        return importlib.import_module(module)
    except (ModuleNotFoundError, TypeError) as error:  # TypeError: `./file.py` is taken for a relative import
        file = Path(module)
        if file.suffix == ".py":
            set_here = f"PYTHONPATH={file.parent} {MODULES}={file.stem}"
            raise PluginError(f"{MODULES} takes modules, not files; set {set_here}") from error
        if Path(f"{module}.py").is_file() and getattr(error, "name", None) == module:
            raise PluginError(f"{error}; {module}.py is in the working directory: set PYTHONPATH=. too") from error
        raise
