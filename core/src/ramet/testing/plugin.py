"""Check of a whole plugin: everything that it registers is built with its default options and checked."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from ramet.plugins import Plugins, load_plugins
from ramet.registry import Entry
from ramet.shapes import is_tool_set

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


def check_plugin(name: str, *, skip: Mapping[str, str] | None = None) -> list[str]:
    """Check everything that the installed plugin `name` registers; returns what was checked, as `group.name`.

    `skip` maps `group.name` (as in the configuration, say `benchmarks.gsm8k`) to the reason why it cannot be checked
    here: its data is absent, it needs a server. Raises one `AssertionError` with every problem found.
    """
    skip = dict(skip or {})
    plugins = load_plugins()
    _expect_healthy(plugins, name)
    checked, problems = [], []
    for kind, registry in plugins.registries:
        for entry in (e for e in registry if e.plugin == name):
            where = f"{registry.group}.{entry.name}"
            if skip.pop(where, None) is None:
                checked.append(where)
                problems += _problems(where, kind, entry)
    problems += [f"skip names {where!r}, which plugin {name!r} does not register" for where in skip]
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


def _problems(where: str, kind: str, entry: Entry[Any]) -> list[str]:
    """What its check says of one registered thing: at most one problem, since a check stops at the first."""
    check = load_check(kind)
    try:
        built = entry.build()
    except Exception as error:
        return [f"{where}: cannot build it with its default options: {error}"]
    try:
        if is_tool_set(built) and kind == "tools":
            load_check(kind, "check_tool_set")(entry.build)
        else:
            check(built, name=entry.name) if kind == "tools" else check(built)
    except AssertionError as error:
        return [f"{where}: {error}"]
    return []


def load_check(kind: str, name: str | None = None) -> Callable[..., None]:
    """The check of a kind of registry, or another one that is kept beside it."""
    module = CHECKS[kind]
    check: Callable[..., None] = getattr(importlib.import_module(f"ramet.testing.{module}"), name or f"check_{module}")
    return check
