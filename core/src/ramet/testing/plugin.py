"""Check of a complete plugin: builds and checks everything that it registers. Or of one component without a plugin."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ramet.config.catalog import first_line, typed_options, unusable_options
from ramet.errors import ConfigError, PluginError
from ramet.plugins import Plugins, load_plugins
from ramet.plugins.component_checks import is_agent, is_tool_set
from ramet.plugins.registry import Entry, Registry
from ramet.testing.checked import LIMIT_S, time_limit

# Kind of registry -> the name of its check, `check_<name>`.
CHECKS = {
    "rollout_steps": "rollout_step",
    "branch_policies": "branch_policy",
    "advantages": "advantage",
    "policy_losses": "policy_loss",
    "tools": "tool",
    "rewards": "reward",
    "benchmarks": "benchmark",
}
# Argument of `check_plugin` -> the kind that it is for, and the argument of its check.
GIVEN = {"calls": ("rollout step", "call"), "replies": ("rollout step", "replies"), "examples": ("tool", "examples")}
NOTHING = "it registers nothing: write a hook, as `@hookimpl def register_tools(register)`, that calls register"


def check_plugin(
    name: str,
    *,
    skip: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    calls: Mapping[str, str] | None = None,
    replies: Mapping[str, Sequence[str]] | None = None,
    examples: Mapping[str, Any] | None = None,
    limit_s: float = LIMIT_S,
) -> list[str]:
    """Check everything that the installed plugin `name` registers; returns the checked components, as `group.name`.

    They are in the order of the hooks (rollout steps, branch policies, advantages, policy losses, tools, rewards,
    benchmarks), and by name within each. The keys of all maps are `group.name` as in the configuration. A key that the
    plugin does not register is an error:

    * `skip`: why it cannot be checked here: its data is absent, it needs a server;
    * `options`: a mapping of its options, or an instance of its `config`; without it, it is built with its defaults;
    * `calls`: of a rollout step, the text by which a policy asks for the tool `echo` with the text `hello`;
    * `replies`: of a rollout step, what a policy may write in its turns, of which the first ends no rollout (an agent's
      may call its tools, and end);
    * `examples`: of a tool, arguments of valid calls; of a set of tools, a mapping of them by name of the tool.

    A check that hangs is reported with its line after `limit_s` seconds in which no call ended (ten times as many for
    a benchmark, which may load much). Raises one `AssertionError` with the first problem of each component.
    """
    plugins = load_plugins()
    _expect_healthy(plugins, name)
    entries = {f"{registry.group}.{entry.name}": (kind, entry) for kind, registry in plugins.registries
               for entry in registry if entry.plugin == name}  # fmt: skip
    skip, options, calls = skip or {}, options or {}, calls or {}
    inputs = {"skip": skip, "options": options, "calls": calls, "replies": replies or {}, "examples": examples or {}}
    problems, first = [] if entries else [NOTHING], None
    checked = [where for where in entries if where not in skip]
    for where in checked:
        kind, entry = entries[where]
        for_it = {singular: inputs[maps][where] for maps, (_, singular) in GIVEN.items() if where in inputs[maps]}
        try:
            with time_limit(_check.__code__, limit_s * (10 if kind == "benchmarks" else 1)):
                _check(where, kind, entry, options.get(where), for_it)
        except AssertionError as error:  # at most one, since a check stops at the first
            problems.append(f"{where}: {error}")
            first = first or error
    problems += [
        f"{maps} names {where!r}, which plugin {name!r} does not register"
        for maps, of in inputs.items()
        for where in of
        if where not in entries
    ]
    problems += [f"{maps} names {where!r}, which is not a {registry}" for maps, (registry, _) in GIVEN.items()
                 for where in inputs[maps] if where in entries and entries[where][1].kind != registry]  # fmt: skip
    if problems:
        raise AssertionError(
            f"plugin {name!r} breaks the contract\n" + "\n".join(f"* {p}" for p in problems)
        ) from first
    return checked


def _expect_healthy(plugins: Plugins, name: str) -> None:
    info = next((i for i in plugins.infos if i.name == name), None)
    if info is None:
        installed = ", ".join(i.name for i in plugins.infos)
        raise AssertionError(f"no plugin named {name!r} is installed; installed: {installed}")
    if info.broken:
        raise AssertionError(f"plugin {name!r} ({info.distribution}) is broken: {info.broken}")


def _check(where: str, kind: str, entry: Entry[Any], options: Any, extra: dict[str, Any]) -> None:
    def build() -> Any:
        return entry.build(_typed(entry, options))

    try:
        built = build()
    except (Exception, SystemExit) as error:
        what = "its default options" if options is None else f"the options {options!r}"
        others = f"; give it others in options={{{where!r}: {{…}}}}, or skip it with a reason"
        fix = others if options is None and (error.__cause__ or not isinstance(error, PluginError)) else ""
        raise AssertionError(f"cannot build it with {what}: {first_line(error)}{fix}") from error
    if entry.kind == "tool" and is_tool_set(built):
        load_check(kind, "check_tool_set")(build, **extra)
    elif entry.kind == "tool":
        load_check(kind)(built, name=entry.name, **extra)
    elif kind == "rollout_steps" and is_agent(built):
        if "call" in extra:
            raise AssertionError("calls names an agent, which has tools of its own: give replies that call them")
        load_check(kind, "check_agent")(built, **extra)
    else:
        load_check(kind)(built, **extra)


def _typed(entry: Entry[Any], options: Any) -> Any:
    """An instance of the entry's `config`, made as in a run. Raises `ConfigError` and what `__post_init__` does."""
    if entry.config is None:
        if options is not None:
            raise TypeError("it takes no options")
        return None
    if unusable := unusable_options(entry.config):
        raise PluginError(f"{unusable}; a run refuses it")
    if options is not None and not isinstance(options, Mapping):
        return options
    return typed_options(entry.config, options or {})


def load_check(kind: str, name: str | None = None) -> Callable[..., None]:
    """Import the check of a kind of registry, or another one."""
    check: Callable[..., None] = getattr(importlib.import_module("ramet.testing"), name or f"check_{CHECKS[kind]}")
    return check


@contextlib.contextmanager
def registered(
    kind: str,
    name: str,
    factory: Callable[..., Any] | str,
    *,
    config: type[Any] | None = None,
    distribution: str = "test",
) -> Iterator[None]:
    """Offer what `factory` makes as the `name` of this kind until the block ends.

    `kind` is as `ramet plugins` prints it ("tools", "branch_policy"); `factory` and `config` are what a hook's
    `register` takes; messages name the package `distribution`. A component that is installed under this name is
    replaced for the time of the block. Raises `ConfigError` for an unknown kind, `PluginError` for what `register`
    refuses.
    """
    kinds: dict[str, Registry[Any]] = {registry.group: registry for _, registry in load_plugins().registries}
    if kind not in kinds:
        raise ConfigError(f"kind: {kind!r}; allowed: {', '.join(kinds)}")
    registry = kinds[kind]
    entry: Entry[Any] = Entry(
        kind=registry.kind, name=name, factory=factory, config=config, plugin="test", distribution=distribution
    )
    registry.check(entry)
    before = registry._entries.get(name)
    registry._entries[name] = entry
    try:
        yield
    finally:
        if before is None:
            del registry._entries[name]
        else:
            registry._entries[name] = before
