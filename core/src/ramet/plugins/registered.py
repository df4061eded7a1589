"""Rewards and branch policies by their names: how one is used without importing the package that offers it."""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Mapping
from typing import Any

from ramet.errors import ConfigError
from ramet.plugins import load_plugins
from ramet.plugins.instance_keys import instance_key, instance_of
from ramet.types import BranchPolicy, Reward


def reward_named(name: str, options: Mapping[str, Any] | None = None, *, key: str | None = None) -> Reward:
    """The reward of this name that an installed plugin offers, built as `rewards.NAME.params` would build it.

    Options may be nested mappings, and the texts of enumerations. `key` is where the caller has them from
    (`benchmarks.gaia.params.judge`), for the reward's messages, which say `rewards.NAME.params` without it. The caller
    owns the reward: it calls `start`, if there is one, before the first score, and `aclose` at the end. Raises
    `ConfigError` for a name that is not installed and for options that it does not take, `PluginError` if it cannot be
    built.
    """
    return typing.cast(Reward, _built("rewards", name, options or {}, f"rewards.{name}.params", key))


def branch_policy_named(name: str, options: Mapping[str, Any], *, key: str) -> BranchPolicy:
    """The branch policy of this name, built with these options. Raises what `reward_named` raises.

    `key` is where they are given (`branch_policy.params.params`), for messages.
    """
    return typing.cast(BranchPolicy, _built("branch_policies", name, options, "branch_policy.params", key))


def _built(kind: str, name: str, options: Mapping[str, Any], declared: str, key: str | None) -> Any:
    entry = load_plugins().get(kind, name)
    if entry.config is None:
        if options:
            raise ConfigError(f"the {entry.kind} {name!r} takes no options, got {', '.join(options)}")
        return entry.build()
    params = _options(entry.config, options, f"{entry.kind} {name!r}")
    with instance_of(declared, declared if key is None else instance_key(key)):
        return entry.build(params)


def code_of_reward(name: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return option -> the program or file of code that it names, of the reward `name` with these options.

    For the `runs_code` of options that choose rewards. Raises `ConfigError` as `reward_named`.
    """
    entry = load_plugins().get("rewards", name)
    if entry.config is None or not hasattr(entry.config, "runs_code"):
        return {}
    code_by_option: dict[str, str] = _options(entry.config, options, f"reward {name!r}").runs_code()
    return code_by_option


def _options(config: type[Any], options: Mapping[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(config)
    fields = [field.name for field in dataclasses.fields(config) if field.init]
    unknown = [str(key) for key in options if key not in fields]
    if unknown:
        raise ConfigError(f"{where}: no option {', '.join(unknown)}; allowed: {', '.join(fields)}")
    values = {key: _value(hints[key], value, f"{where}, option {key}") for key, value in options.items()}
    try:
        return config(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _value(hint: Any, value: Any, where: str) -> Any:
    if isinstance(value, Mapping) and dataclasses.is_dataclass(hint):
        return _options(typing.cast(type[Any], hint), value, where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum) and not isinstance(value, hint):
        try:
            return hint(value)
        except ValueError as error:
            allowed = ", ".join(str(member.value) for member in hint)
            raise ConfigError(f"{where}: {value!r}; allowed: {allowed}") from error
    if hint is float and type(value) is int:
        return float(value)
    if hint in (str, int, float, bool) and type(value) is not hint:
        raise ConfigError(f"{where}: {value!r}; allowed: a value of type {hint.__name__}")
    return value
