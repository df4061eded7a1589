"""Typed registries of named factories: the hooks fill them, and the loops build from them."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ramet.errors import ConfigError, PluginError, RametError
from ramet.plugins.component_checks import is_async, misfits
from ramet.plugins.instance_keys import instance_of
from ramet.plugins.plugin_code import defined_at, named, raised_at
from ramet.types import (
    AdvantageEstimator,
    Agent,
    Benchmark,
    BranchPolicy,
    PolicyLoss,
    Reward,
    RolloutStep,
    Tool,
    ToolSet,
)
from ramet.types.option import option_problems

T = TypeVar("T")
BUILTIN = "core"  # the plugin name of what Ramet itself offers
NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
KIND_GROUPS = {"tool": "tools", "reward": "rewards", "benchmark": "benchmarks"}  # whose instances may have own names
OPTIONS_HOW = "options come from config=, a dataclass: register(NAME, CLASS, config=OPTIONS)"
FACTORY = re.compile(r"\w+(\.\w+)*:\w+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Generic[T]):
    """One registered name: who offers it, how it is built and which options it takes."""

    kind: str
    name: str
    factory: Callable[..., T] | str
    config: type[Any] | None
    plugin: str
    distribution: str

    def build(self, params: Any = None, *, key: str | None = None) -> T:
        """Build the object; `params` is an instance of `config`, None for its defaults. Messages name it by `key`
        (`rewards.second`), if its key is not `GROUP.NAME`.

        Raises `PluginError` that names plugin and distribution, chained to what the factory raised.
        """
        factory = self._load()
        if problem := self._misuse(factory):
            raise PluginError(f"plugin {self.plugin!r} ({self.distribution}): the {self.kind} {self.name!r} {problem}")
        declared = f"{KIND_GROUPS.get(self.kind, self.kind)}.{self.name}"
        try:
            with instance_of(declared, key or declared):
                if self.config is None:
                    built = factory()
                else:
                    built = factory(self._options(params))
        except ConfigError as error:
            who = f"{self.kind} {self.name!r} of plugin {self.plugin!r} ({self.distribution})"
            raise named(error, who, self.name if key is None or key == declared else key) from error
        except RametError:
            raise
        except Exception as error:
            raise PluginError(self._could_not(error)) from error
        wrong = misfits(built, self.kind)
        if wrong:
            raise PluginError(
                f"plugin {self.plugin!r} ({self.distribution}): the {self.kind} {self.name!r} does not keep the "
                f"contract: {'; '.join(wrong)}"
            )
        return built

    def _options(self, params: Any) -> Any:
        """`params`, or the defaults. Raises `ConfigError` for values that their `option` does not allow."""
        options = self.config() if params is None and self.config is not None else params
        if dataclasses.is_dataclass(options) and (problems := list(option_problems(options))):
            raise ConfigError("; ".join(problems))
        return options

    def _load(self) -> Callable[..., T]:
        if not isinstance(self.factory, str):
            return self.factory
        module, _, attribute = self.factory.partition(":")
        try:
            loaded: Callable[..., T] = getattr(importlib.import_module(module), attribute)
        except Exception as error:
            raise PluginError(self._could_not(error)) from error
        return loaded

    def _misuse(self, factory: Any) -> str | None:
        """Return why the factory cannot be called: often it is the component itself, or a class that takes options."""
        try:
            signature = inspect.signature(factory)
        except (ValueError, TypeError):  # a built-in says nothing about its parameters
            return None
        try:
            signature.bind(*([] if self.config is None else [None]))
        except TypeError:
            where = defined_at(factory, "__init__" if isinstance(factory, type) else "__call__")
            needs = (
                f"needs {signature} and is called {'without arguments' if self.config is None else 'with its options'}"
            )
            if isinstance(factory, type):
                return f"is registered as the class {factory.__name__}, whose __init__ {needs}: {OPTIONS_HOW}{where}"
            return f"{needs}: register a factory that makes the object: register({self.name!r}, lambda: …){where}"
        if not isinstance(factory, type) and is_async(factory):
            return (
                "is registered as the object itself, or with an async factory: register a plain function that makes "
                f"the object: register({self.name!r}, lambda: …){defined_at(factory)}"
            )
        return None

    def _could_not(self, error: Exception) -> str:
        return (
            f"plugin {self.plugin!r} ({self.distribution}) could not build {self.kind} {self.name!r}: "
            f"{type(error).__name__}: {error}{raised_at(error)}"
        )


class Registry(Generic[T]):
    """Named factories of one kind. A name registered twice is fatal and names both packages."""

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind  # as in messages: "branch policy"
        self.group = group  # as in the configuration: "branch_policy"
        self._entries: dict[str, Entry[T]] = {}

    def check(self, entry: Entry[T]) -> None:
        """Raise `PluginError` unless the entry is well formed. Says nothing of names taken."""
        what = f"{self.kind} {entry.name!r} of plugin {entry.plugin!r}"
        if not isinstance(entry.name, str) or not NAME.fullmatch(entry.name):
            raise PluginError(
                f"{what}: this name is not allowed: lower-case letters, digits and underscores, a letter first, at "
                "most 63 characters"
            )
        if isinstance(entry.factory, str) and not FACTORY.fullmatch(entry.factory):
            raise PluginError(f"{what}: a factory string must be 'package.module:attribute', got {entry.factory!r}")
        if not isinstance(entry.factory, str) and not callable(entry.factory):
            raise PluginError(f"{what}: the factory must be callable, got {entry.factory!r}")
        is_class = isinstance(entry.config, type) and dataclasses.is_dataclass(entry.config)
        if entry.config is not None and not is_class:
            raise PluginError(f"{what}: config must be a dataclass, got {entry.config!r}")

    def add(self, entry: Entry[T], *, instead_of: str | None = None) -> None:
        """Take the entry in; one of the plugin `instead_of` is replaced.

        Raises `PluginError` as `check` does, and `DuplicateName`.
        """
        self.check(entry)
        taken = self._entries.get(entry.name)
        if taken is not None and taken.plugin != instead_of:
            raise DuplicateName(f"{self.kind} {entry.name!r} is registered twice: {_twice(taken, entry)}")
        self._entries[entry.name] = entry

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(sorted(self._entries.values(), key=lambda e: e.name))

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def names(self) -> list[str]:
        return sorted(self._entries)

    def get(self, name: str, absent: str = "") -> Entry[T]:
        """The entry of this name. Raises `ConfigError` with a suggestion and `absent`: why it may be missing."""
        if name in self._entries:
            return self._entries[name]
        close = difflib.get_close_matches(name, self._entries, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        installed = ", ".join(self.names) or "none"
        raise ConfigError(f"{self.group}: no {self.kind} named {name!r}.{hint} Installed: {installed}{absent}.")


def _twice(taken: Entry[Any], entry: Entry[Any]) -> str:
    """Return which plugins offer the name, and what to do about it."""
    second = f"plugin {entry.plugin!r} ({entry.distribution})"
    if taken.plugin == entry.plugin:
        return f"{second} does both; remove one"
    by = f"by plugin {taken.plugin!r} ({taken.distribution}) and by {second}"
    if BUILTIN in (taken.plugin, entry.plugin):
        other = entry if taken.plugin == BUILTIN else taken
        return f"{by}; Ramet itself cannot be blocked: rename it there, or set RAMET_BLOCK_PLUGINS={other.plugin}"
    return f"{by}; uninstall one, or block it with RAMET_BLOCK_PLUGINS={entry.plugin}"


class DuplicateName(PluginError):
    """Error for two plugins that offer one name. Fatal at load, whatever the run selects."""


@dataclass(slots=True)
class Registries:
    """One registry per hook. Field names are the hooks' kinds."""

    rollout_steps: Registry[RolloutStep | Agent] = field(
        default_factory=lambda: Registry("rollout step", "rollout_step")
    )
    branch_policies: Registry[BranchPolicy] = field(default_factory=lambda: Registry("branch policy", "branch_policy"))
    advantages: Registry[AdvantageEstimator] = field(
        default_factory=lambda: Registry("advantage estimator", "advantage")
    )
    policy_losses: Registry[PolicyLoss] = field(default_factory=lambda: Registry("policy loss", "policy_loss"))
    tools: Registry[Tool | ToolSet] = field(default_factory=lambda: Registry("tool", "tools"))
    rewards: Registry[Reward] = field(default_factory=lambda: Registry("reward", "rewards"))
    benchmarks: Registry[Benchmark] = field(default_factory=lambda: Registry("benchmark", "benchmarks"))

    def __iter__(self) -> Iterator[tuple[str, Registry[Any]]]:
        for registry_field in dataclasses.fields(self):
            yield registry_field.name, getattr(self, registry_field.name)
