"""Loading: entry points of the group `ramet` become filled registries, once per process (driver and every actor).

A name offered twice is fatal. A plugin that cannot be imported, breaks a hook or was built for another contract version
is recorded as BROKEN with its reason, and is fatal only for a run that selects something from it.

Environment: `RAMET_BLOCK_PLUGINS=a,b` skips plugins by name; `RAMET_PLUGINS=module,…` loads importable modules that are
not installed as distributions (experiments, Ray `py_modules`).
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any

import pluggy

from ramet import hookspecs
from ramet.errors import PluginError
from ramet.hookspecs import Register
from ramet.registry import DuplicateName, Entry, Registries, Registry

CONTRACT_VERSION = "1"
GROUP = "ramet"
BUILTIN = "core"


@dataclass(slots=True, kw_only=True)
class PluginInfo:
    """One plugin as `ramet plugins` lists it. `broken` holds the reason, None when healthy."""

    name: str
    module: str
    distribution: str
    version: str
    contract: str = ""
    offers: dict[str, list[str]] = field(default_factory=dict)  # kind -> names
    broken: str | None = None


@dataclass(slots=True)
class Plugins:
    """What is installed in this process."""

    registries: Registries
    infos: list[PluginInfo]

    @property
    def broken(self) -> list[str]:
        return [info.name for info in self.infos if info.broken]

    def get(self, kind: str, name: str) -> Entry[Any]:
        """The entry of `kind` (a field of `Registries`). Raises `ConfigError` for an unknown name."""
        entry: Entry[Any] = getattr(self.registries, kind).get(name, self.broken)
        return entry


@dataclass(frozen=True, slots=True)
class Source:
    """Where one plugin comes from, before it is loaded."""

    name: str
    module: str
    distribution: str
    version: str
    load: Callable[[], Any]


@functools.cache
def load_plugins() -> Plugins:
    """Load everything installed; later calls return the same object. Raises `PluginError` for a duplicate name."""
    return load_from(list(_sources()))


def origin(component: object) -> str:
    """Class, plugin and distribution of a built component, for messages about a broken contract."""
    cls = type(component)
    top = cls.__module__.partition(".")[0]
    name = f"{cls.__module__}.{cls.__qualname__}"
    for info in load_plugins().infos:
        if info.module.partition(".")[0] == top:
            return f"{name} of plugin {info.name!r} ({info.distribution} {info.version})"
    return name


def load_from(sources: list[Source]) -> Plugins:
    """Load these sources in order. Split from `load_plugins` so that tests can load a house of their own."""
    manager = pluggy.PluginManager("ramet")
    manager.add_hookspecs(hookspecs)
    plugins = Plugins(registries=Registries(), infos=[])
    seen: dict[str, Source] = {}
    for source in sources:
        if source.name in seen:
            raise DuplicateName(
                f"plugin name {source.name!r} is used twice: by {seen[source.name].distribution} and by "
                f"{source.distribution}; uninstall one"
            )
        seen[source.name] = source
        plugins.infos.append(_load_one(source, manager, plugins.registries))
    return plugins


def _load_one(source: Source, manager: pluggy.PluginManager, registries: Registries) -> PluginInfo:
    info = PluginInfo(name=source.name, module=source.module, distribution=source.distribution, version=source.version)
    try:
        module = source.load()
        info.contract = _contract_of(module, source)
        manager.register(module, name=source.name)
        manager.check_pending()
        staged = _collect(module, source, registries)
    except (Exception, SystemExit) as error:  # whatever a plugin does at import must not take the others down
        if manager.has_plugin(source.name):
            manager.unregister(name=source.name)
        info.broken = f"{type(error).__name__}: {error}"
        return info
    for registry, entry in staged:
        registry.add(entry)
        info.offers.setdefault(registry.group, []).append(entry.name)
    return info


def _contract_of(module: Any, source: Source) -> str:
    found = getattr(module, "ramet_contract", None)
    if found is None:
        raise PluginError(f"module {source.module!r} does not state ramet_contract = {CONTRACT_VERSION!r}")
    if str(found) != CONTRACT_VERSION:
        raise PluginError(
            f"built for contract version {found}, this ramet speaks {CONTRACT_VERSION}: install a matching "
            f"release of {source.distribution}"
        )
    return str(found)


def _collect(module: Any, source: Source, registries: Registries) -> list[tuple[Any, Entry[Any]]]:
    """Call the module's hooks. Nothing is added before all of them ran, so a broken plugin leaves nothing behind."""
    staged: list[tuple[Any, Entry[Any]]] = []
    for kind, registry in registries:
        hook = getattr(module, f"register_{kind}", None)
        if hook is None:
            continue
        if not hasattr(hook, "ramet_impl"):
            raise PluginError(f"register_{kind} is not decorated with @hookimpl")

        hook(_stage(staged, registry, source))
    return staged


def _stage(staged: list[tuple[Any, Entry[Any]]], registry: Registry[Any], source: Source) -> Register[Any]:
    """What one hook of one plugin receives: refuses a malformed entry at once, in the plugin's own call."""

    def register(name: str, factory: Any, *, config: type[Any] | None = None) -> None:
        entry: Entry[Any] = Entry(
            kind=registry.kind,
            name=name,
            factory=factory,
            config=config,
            plugin=source.name,
            distribution=source.distribution,
        )
        registry.check(entry)
        staged.append((registry, entry))

    return register


def _sources() -> Iterator[Source]:
    blocked = _names("RAMET_BLOCK_PLUGINS")
    yield _module_source(BUILTIN, "ramet.builtin", "ramet")
    for point in sorted(entry_points(group=GROUP), key=lambda p: (p.name, _distribution(p)[0])):
        if point.name not in blocked:
            yield _entry_point_source(point)
    for module in _names("RAMET_PLUGINS"):
        yield _module_source(module, module, f"module {module}")


def _names(variable: str) -> list[str]:
    return [part.strip() for part in os.environ.get(variable, "").split(",") if part.strip()]


def _distribution(point: EntryPoint) -> tuple[str, str]:
    """Name and version. A folder without METADATA has neither, whatever its type says."""
    if point.dist is None:
        return "unknown", ""
    return point.dist.name or "unknown", point.dist.version or ""


def _entry_point_source(point: EntryPoint) -> Source:
    distribution, version = _distribution(point)
    return Source(point.name, point.value, distribution, version, point.load)


def _module_source(name: str, module: str, distribution: str) -> Source:
    try:
        found = version(distribution)
    except PackageNotFoundError:
        found = ""
    return Source(name, module, distribution, found, functools.partial(importlib.import_module, module))
