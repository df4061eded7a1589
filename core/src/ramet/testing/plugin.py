"""Check of a whole plugin: everything that it registers is built and checked."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from ramet.component_checks import is_tool_set
from ramet.plugins import Plugins, load_plugins
from ramet.registry import Entry

# Kind of registry -> module of this package that holds its check, `check_<module>`.
CHECKS = {
    "rollout_steps": "rollout_step",
    "branch_policies": "branch_policy",
    "advantages": "advantage",
    "policy_losses": "policy_loss",
    "tools": "tool",
    "rewards": "reward",
    "benchmarks": "benchmark",
}


def check_plugin(
    name: str,
    *,
    skip: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    calls: Mapping[str, str] | None = None,
) -> list[str]:
    """Check everything that the installed plugin `name` registers; returns what was checked, as `group.name`.

    The order is that of the hooks (rollout steps, branch policies, advantages, policy losses, tools, rewards,
    benchmarks), and by name within each. All three maps have `group.name` as in the configuration for keys, and a key
    that the plugin does not register is a mistake:

    * `skip`: why it cannot be checked here: its data is absent, it needs a server;
    * `options`: a mapping of its options, or an instance of its `config`; without it, it is built with its defaults;
    * `calls`: of a rollout step, the text by which a policy asks for the tool `echo` with the text `hello`.

    Raises one `AssertionError` with the first problem of each thing that has one.
    """
    plugins = load_plugins()
    _expect_healthy(plugins, name)
    entries = {f"{registry.group}.{entry.name}": (kind, entry) for kind, registry in plugins.registries
               for entry in registry if entry.plugin == name}  # fmt: skip
    skip, options, calls = dict(skip or {}), dict(options or {}), dict(calls or {})
    checked = [where for where in entries if where not in skip]
    problems = []
    for where in checked:
        kind, entry = entries[where]
        problems += _problems(where, kind, entry, options.get(where), calls.get(where))
    problems += [
        f"{argument} names {where!r}, which plugin {name!r} does not register"
        for argument, given in {"skip": skip, "options": options, "calls": calls}.items()
        for where in given
        if where not in entries
    ]
    problems += [f"calls names {where!r}, which is no rollout step" for where in calls
                 if where in entries and entries[where][0] != "rollout_steps"]  # fmt: skip
    if problems:
        raise AssertionError(f"plugin {name!r} breaks the contract\n" + "\n".join(f"* {p}" for p in problems))
    return checked


def _expect_healthy(plugins: Plugins, name: str) -> None:
    info = next((i for i in plugins.infos if i.name == name), None)
    if info is None:
        installed = ", ".join(i.name for i in plugins.infos)
        raise AssertionError(f"no plugin named {name!r} is installed; installed: {installed}")
    if info.broken:
        raise AssertionError(f"plugin {name!r} ({info.distribution}) is broken: {info.broken}")


def _problems(where: str, kind: str, entry: Entry[Any], options: Any, call: str | None) -> list[str]:
    """What its check says of one registered thing: at most one problem, since a check stops at the first."""
    check = load_check(kind)
    try:
        built = entry.build(_params(entry, options))
    except Exception as error:
        if options is not None:
            return [f"{where}: cannot build it with the options {options!r}: {error}"]
        return [
            f"{where}: cannot build it with its default options: {error}; give it others in "
            f"options={{{where!r}: {{…}}}}, or skip it with a reason"
        ]
    named: dict[str, Any] = {"name": entry.name} if kind == "tools" else {}
    if call is not None and kind == "rollout_steps":
        named["call"] = call
    try:
        if is_tool_set(built) and kind == "tools":
            load_check(kind, "check_tool_set")(lambda: entry.build(_params(entry, options)))
        else:
            check(built, **named)
    except AssertionError as error:
        return [f"{where}: {error}"]
    return []


def _params(entry: Entry[Any], options: Any) -> Any:
    """An instance of the entry's `config`. Raises what its constructor raises, `TypeError` for options of no config."""
    if options is None or not isinstance(options, Mapping):
        return options
    if entry.config is None:
        raise TypeError("it takes no options")
    return entry.config(**options)


def load_check(kind: str, name: str | None = None) -> Callable[..., None]:
    """The check of a kind of registry, or another one that is kept beside it."""
    module = CHECKS[kind]
    check: Callable[..., None] = getattr(importlib.import_module(f"ramet.testing.{module}"), name or f"check_{module}")
    return check
