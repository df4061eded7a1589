"""Loading: installed plugins fill the registries, once per process (driver and every actor).

A name offered twice is fatal. A plugin is recorded as BROKEN, with its reason, if it cannot be imported, breaks a hook
or was built for another contract version. That is fatal only for a run that selects one of its components.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import logging
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pluggy

from ramet.errors import PluginError
from ramet.plugins import hookspecs
from ramet.plugins.hookspecs import Register
from ramet.plugins.plugin_code import raised_at, written_by_user
from ramet.plugins.registry import BUILTIN, DuplicateName, Entry, Registries, Registry
from ramet.plugins.sources import Source, blocked_plugins, core_source, how_to_install, installed_sources

logger = logging.getLogger(__name__)
CONTRACT_VERSION = "1"
GIVEN = "this process"  # the plugin name of objects that `ramet.api` was given
OBJECTS = ("tools", "rewards")  # the kinds of which it takes objects
SLOW_S = 1.0  # an import that takes longer is named
CLOSE = 0.9  # how alike a function without a decorator is to a hook's name, for it to be meant as one


@dataclass(slots=True, kw_only=True)
class PluginInfo:
    """One plugin as `ramet plugins` lists it. `broken`: the reason, None when healthy."""

    name: str
    module: str
    distribution: str
    version: str
    contract: str = ""
    offers: dict[str, list[str]] = field(default_factory=dict)  # kind -> names
    broken: str | None = None
    import_s: float = 0.0

    @property
    def slow(self) -> str | None:
        """A message about a module that takes long to import; None for others, and for the core."""
        if self.import_s < SLOW_S or self.name == BUILTIN:
            return None
        return (
            f"its import takes {self.import_s:.1f} s, and each command waits for it: import heavy modules in the "
            "functions that use it, or register the factory as a string 'package.module:attribute'"
        )


def core_engines() -> Registry[Any]:
    """The engines of the core: no hook offers others."""
    registry: Registry[Any] = Registry("engine", "engine")
    staged: list[tuple[Any, Entry[Any]]] = []
    core = core_source()
    core.load().register_engines(_stage(staged, registry, core))
    for _, entry in staged:
        registry.add(entry)
    return registry


@dataclass(slots=True)
class Plugins:
    """The plugins that are installed in this process."""

    registries: Registries
    infos: list[PluginInfo]
    engines: Registry[Any] = field(default_factory=core_engines)

    @property
    def broken(self) -> list[str]:
        return [info.name for info in self.infos if info.broken]

    @property
    def absent(self) -> str:
        """The reasons why a name may be missing, for the end of a message: sentences, or nothing."""
        return "".join(f". {reason}" for reason in (_failed_text(self.infos), _blocked_text()) if reason)

    def get(self, kind: str, name: str) -> Entry[Any]:
        """The entry of `kind` (a field of `Registries`). Raises `ConfigError` for an unknown name."""
        how = how_to_install(name)
        entry: Entry[Any] = getattr(self.registries, kind).get(name, f". {how}" if how else self.absent)
        return entry

    def give(self, kind: str, name: str, component: Any) -> None:
        """Register a built object of this process, in the place of an earlier one of that name.

        Raises `PluginError` for a name that is not allowed, and for one that a plugin has.
        """
        registry: Registry[Any] = getattr(self.registries, kind)
        entry: Entry[Any] = Entry(
            kind=registry.kind, name=name, factory=lambda: component, config=None, plugin=GIVEN, distribution="Python"
        )
        registry.add(entry, instead_of=GIVEN)

    def given(self, kind: str, name: str) -> Any:
        """The object that `give` registered under this name; None for any other name."""
        registry: Registry[Any] = getattr(self.registries, kind)
        entry: Entry[Any] | None = registry.get(name) if name in registry else None
        return entry.build() if entry is not None and entry.plugin == GIVEN else None


@functools.cache
def load_plugins() -> Plugins:
    """Load everything installed; later calls return the same object.

    Raises `PluginError` for a duplicate name, `ConfigError` for a name in `RAMET_BLOCK_PLUGINS` that cannot be blocked.
    """
    return load_from(list(installed_sources()))


def origin(component: object) -> str:
    """Class, plugin and distribution of a built component, for messages about a broken contract."""
    inner: Any = written_by_user(component)
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    top = named.__module__.partition(".")[0]
    name = f"{named.__module__}.{named.__qualname__}"
    for info in load_plugins().infos:
        if info.module.partition(".")[0] == top:
            return f"{name} of plugin {info.name!r} ({f'{info.distribution} {info.version}'.rstrip()})"
    return name


def load_from(sources: list[Source]) -> Plugins:
    """Load these sources in order. Separate from `load_plugins` so that tests can load their own plugins."""
    manager = pluggy.PluginManager("ramet")
    manager.add_hookspecs(hookspecs)
    plugins = Plugins(registries=Registries(), infos=[])
    seen: dict[str, Source] = {}
    for source in sources:
        source = _once(source, seen.values())
        if source.name in seen:
            raise DuplicateName(_twice(seen[source.name], source))
        seen[source.name] = source
        plugins.infos.append(_load_one(source, manager, plugins.registries))
    return plugins


def _once(source: Source, loaded: Iterable[Source]) -> Source:
    """The source; a broken one if its module belongs to another installed one."""
    first = next((other for other in loaded if other.module == source.module and other.name != source.name), None)
    if first is None:
        return source

    def refuse() -> Any:
        where = f"is installed as plugin {first.name!r} ({first.distribution})"
        raise PluginError(f"the module {source.module} {where}: take it out of RAMET_PLUGINS, where it is not needed")

    return replace(source, load=refuse)


def _twice(first: Source, second: Source) -> str:
    if first.name == BUILTIN:
        return (
            f"plugin name {BUILTIN!r} is Ramet's own: give the entry point of {second.distribution} another name, or "
            "uninstall it"
        )
    by = f"by {first.distribution} and by {second.distribution}"
    return f"plugin name {first.name!r} is used twice: {by}; uninstall one"


def _load_one(source: Source, manager: pluggy.PluginManager, registries: Registries) -> PluginInfo:
    info = PluginInfo(name=source.name, module=source.module, distribution=source.distribution, version=source.version)
    started = time.monotonic()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # its prints are not part of a command's own output
            module = source.load()
        info.import_s = round(time.monotonic() - started, 1)
        info.contract = _contract_of(module, source)
        _expect_known_hooks(module)
        staged = _collect(module, source, registries)
        manager.register(module, name=source.name)
        manager.check_pending()
    except (Exception, SystemExit) as error:  # whatever a plugin does at import must not take the others down
        if manager.has_plugin(source.name):
            manager.unregister(name=source.name)
        info.broken = f"{type(error).__name__}: {error}{raised_at(error)}"
        logger.debug("plugin %r of %s is broken", source.name, source.distribution, exc_info=True)
        return info
    for registry, entry in staged:
        registry.add(entry)
        info.offers.setdefault(registry.group, []).append(entry.name)
    return info


def _contract_of(module: Any, source: Source) -> str:
    contract = getattr(module, "ramet_contract", None)
    if contract is None:
        raise PluginError(f"module {source.module!r} does not state ramet_contract = {CONTRACT_VERSION!r}")
    if not isinstance(contract, str):
        kind = type(contract).__name__
        raise PluginError(
            f'ramet_contract is {contract!r} ({kind}); write it as text: ramet_contract = "{CONTRACT_VERSION}"'
        )
    if contract != CONTRACT_VERSION:
        raise PluginError(
            f"built for contract version {contract}, this ramet supports {CONTRACT_VERSION}: install a matching "
            f"release of {source.distribution}"
        )
    return contract


def _expect_known_hooks(module: Any) -> None:
    """A hook with a wrong name would never be called, and the plugin would seem to offer nothing."""
    hook_names = [f"register_{kind}" for kind, _ in Registries()]
    for name, member in vars(module).items():
        if name in hook_names or not callable(member):
            continue
        close = difflib.get_close_matches(name, hook_names, n=1, cutoff=CLOSE)
        if hasattr(member, "ramet_impl"):
            close = close or difflib.get_close_matches(name, hook_names, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise PluginError(f"no hook {name!r}.{hint} Hooks: {', '.join(hook_names)}")
        if close:
            raise PluginError(f"{name!r} is not a hook and would never be called. Did you mean {close[0]!r}?")


def _collect(module: Any, source: Source, registries: Registries) -> list[tuple[Any, Entry[Any]]]:
    """Call the module's hooks. Nothing is added before all of them ran, so a broken plugin adds nothing."""
    staged: list[tuple[Any, Entry[Any]]] = []
    for kind, registry in registries:
        hook = getattr(module, f"register_{kind}", None)
        if hook is None:
            continue
        if not hasattr(hook, "ramet_impl"):
            raise PluginError(f"register_{kind} is not decorated with @hookimpl")
        if inspect.iscoroutinefunction(hook):
            raise PluginError(f"register_{kind} is async and would never run: write `def register_{kind}(register)`")
        if next(iter(inspect.signature(hook).parameters), "") != "register":
            raise PluginError(f"register_{kind}{inspect.signature(hook)}: call its parameter `register`")

        hook(_stage(staged, registry, source))
    return staged


def _stage(staged: list[tuple[Any, Entry[Any]]], registry: Registry[Any], source: Source) -> Register[Any]:
    """Make what one hook of one plugin receives: it refuses a malformed entry at once, in the plugin's own call."""

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


def _failed_text(infos: Sequence[PluginInfo]) -> str:
    reasons = [f"{info.name} ({' '.join(info.broken.split()):.300})" for info in infos if info.broken]
    return f"Plugins that failed to load: {'; '.join(reasons)}" if reasons else ""


def _blocked_text() -> str:
    blocked = blocked_plugins()
    return f"RAMET_BLOCK_PLUGINS={','.join(blocked)} leaves out what these plugins offer" if blocked else ""
