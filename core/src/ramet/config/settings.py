"""Values that the user set (`key=value`), applied one by one so that every mistake is reported, not the first.

Hydra accepts `+unknown.key=1` even over a typed schema; here a key must exist, with or without `+`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Union

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ramet.config.aliases import FOREIGN_SECTIONS, meant, reason
from ramet.config.catalog import first_line, suggest
from ramet.config.gone import GONE
from ramet.config.keys import ENTRIES, JOBS, unused_key
from ramet.config.sections import COMPONENTS, GROUPS

MANY = frozenset(group.name for group in COMPONENTS if group.many)
SINGLE = frozenset(group.name for group in COMPONENTS if not group.many)
BOOLEAN_WORDS = frozenset({"true", "false", "yes", "no", "on", "off"})
TEXT = ("str", "str or null")  # types in words
TEXTS = ("list[str]", "list[str] or null")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    key: str  # dotted
    value: Any  # str, int, float, bool, None, list, dict
    text: str  # as it was typed

    @property
    def section(self) -> str:
        return self.key.partition(".")[0]


def apply_settings(config: DictConfig, settings: Sequence[Setting], job: str) -> list[str]:
    """Set every value in `config`, in order. Returns what is wrong with those that cannot be set.

    Keys are suggested among those that `job` accepts.
    """
    problems = (_apply(config, setting, job) for setting in settings)
    return [problem for problem in problems if problem]


def _apply(config: DictConfig, setting: Setting, job: str) -> str | None:
    parent, _, name = setting.key.rpartition(".")
    if parent in SINGLE and name == "name":
        return f"{setting.key}: choose with {parent}={setting.value}, which also brings its options"
    if setting.key in GONE:
        return GONE[setting.key].problem(setting.key, setting.value)
    problem = unknown_key(config, setting.key, job)
    if problem:
        return problem
    if isinstance(OmegaConf.select(config, setting.key), DictConfig) and not isinstance(setting.value, dict):
        example = next(iter(OmegaConf.select(config, setting.key).keys()), "KEY")
        return f"{setting.key}: is a section, got {setting.value!r}; set its keys, as in {setting.key}.{example}=…"
    if problem := _no_boolean(config, setting.key, setting.value):
        return problem
    try:
        is_open = _is_open(config, setting.key) or _is_open(config, parent)
        has_value = OmegaConf.select(config, setting.key) is not None  # a dict that is null takes no entries
        OmegaConf.update(config, setting.key, _meant(config, setting), merge=has_value, force_add=is_open)
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        expected = expected_type(config, setting.key)
        if isinstance(setting.value, dict) or expected is None:
            return f"{setting.key}: {first_line(error)}"
        return f"{setting.key}: expected {expected}, got {setting.value!r}{_list_hint(expected, setting)}"
    return None


def _no_boolean(config: DictConfig, key: str, value: Any) -> str | None:
    """OmegaConf takes every number for a boolean, so that a value meant for another key would pass for true."""
    if isinstance(value, dict):
        problems = (_no_boolean(config, f"{key}.{name}", inner) for name, inner in value.items())
        return next((problem for problem in problems if problem), None)
    expected = expected_type(config, key)
    if expected not in ("bool", "bool or null") or value is None or isinstance(value, bool):
        return None
    is_word = isinstance(value, str) and value.lower() in BOOLEAN_WORDS
    return None if is_word else f"{key}: expected {expected}, got {value!r}"


def _meant(config: DictConfig, setting: Setting) -> Any:
    """A key that takes a text takes what was typed: `run.name=1e3` is not a number, `run.name=no` not a boolean.

    One text for a key that takes a list of them is a list of one: `data.train=tasks.jsonl`.
    """
    expected = expected_type(config, setting.key)
    meant = setting.value
    if expected in (*TEXT, *TEXTS) and isinstance(meant, bool | int | float):
        meant = setting.text
    return [meant] if expected in TEXTS and isinstance(meant, str) and meant else meant


def _list_hint(expected: str, setting: Setting) -> str:
    if expected.startswith("list") and isinstance(setting.value, str):
        return f"; write {setting.key}=[{setting.value}]"
    return ""


def unknown_key(config: DictConfig, key: str, job: str) -> str | None:
    """Say what is wrong with a key that the configuration does not have, None if it has it.

    Only keys that `job` reads are suggested instead.
    """
    node: Any = config
    done: list[str] = []
    for part in key.split("."):
        if not isinstance(node, DictConfig):
            return _no_deeper(config, key, done)
        if _is_open(config, ".".join(done)):
            return None
        if part not in node.keys():  # `in node` is False for a value that is missing
            return _no_such(config, key, done, part, node, job)
        done.append(part)
        node = None if OmegaConf.is_missing(node, part) else OmegaConf.select(config, ".".join(done))
    return None


def _is_open(config: DictConfig, key: str) -> bool:
    """Whether a key is declared as `dict[str, …]`: its own keys are the user's to name."""
    node = OmegaConf.select(config, key) if key and key not in MANY else None
    return isinstance(node, DictConfig) and OmegaConf.get_type(node) is dict


def _no_deeper(config: DictConfig, key: str, done: list[str]) -> str:
    here = ".".join(done)
    if done[-1] == "params":
        owner = ".".join(done[:-1])
        name = done[1] if done[0] in MANY else OmegaConf.select(config, f"{owner}.name")
        return f"{key}: {name!r} takes no options"
    return f"{key}: no such key; {here} is a value"


def _no_such(config: DictConfig, key: str, done: list[str], part: str, node: DictConfig, job: str) -> str:
    here = ".".join(done)
    if here in MANY:
        close = suggest(part, [str(name) for name in node])
        hint = f"; an instance under a name of its own: {here}.{part}.use=NAME"
        return f"{key}: {part!r} is not chosen; add {here}=[{part}]{hint}.{close}"
    inside = [str(name) for name in node] if here else JOBS[job]
    names = [name for name in inside if unused_key(f"{here}.{name}" if here else name, job) is None]
    close = _elsewhere(config, key, job) or ("" if part in FOREIGN_SECTIONS else suggest(part, names, here))
    if close and not here:
        return f"{key}: no such key.{close}"
    return f"{key}: no such key.{close} {here or 'the configuration'} has: {', '.join(names)}"


def _elsewhere(config: DictConfig, key: str, job: str) -> str:
    """Suggest what others call so, or the same last word in another section: `lr` is `policy.lr`.

    A key of another trainer that leads nowhere is answered with the reason.
    """
    ours = dict.fromkeys(leaf for leaf in (*leaf_keys(config), *ENTRIES) if unused_key(leaf, job) is None)
    suggestions = meant(
        key, lambda candidate: candidate in ours or (candidate in GROUPS and unused_key(candidate, job) is None)
    )
    if not suggestions:
        suggestions = [leaf for leaf in ours if leaf.rpartition(".")[2] == key.rpartition(".")[2]]
    return f" Did you mean {' or '.join(map(repr, suggestions[:2]))}?" if suggestions else reason(key)


def leaf_keys(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """All dotted keys that hold a value."""
    for name in map(str, config):
        node = None if OmegaConf.is_missing(config, name) or OmegaConf.is_interpolation(config, name) else config[name]
        if isinstance(node, DictConfig):
            yield from leaf_keys(node, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def expected_type(config: DictConfig, key: str) -> str | None:
    """The declared type of a key in words, None where it has none."""
    parent, _, name = key.rpartition(".")
    owner = OmegaConf.get_type(OmegaConf.select(config, parent) if parent else config)
    if owner is None or not dataclasses.is_dataclass(owner):
        return None
    hint = typing.get_type_hints(owner).get(name)
    return None if hint in (None, Any) else type_in_words(hint)


def type_in_words(hint: Any) -> str:
    """`float`, `int or null`, `list[str]`, `one of a, b`."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        members = typing.get_args(hint)
        words = [type_in_words(member) for member in members if member is not types.NoneType]
        return " or ".join([*words, "null"] if types.NoneType in members else words)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(str(choice.value) for choice in hint)
    if typing.get_origin(hint) in (list, tuple, dict):
        inner = ", ".join("…" if a is Ellipsis else type_in_words(a) for a in typing.get_args(hint))
        return f"{typing.get_origin(hint).__name__}[{inner}]"
    return getattr(hint, "__name__", str(hint))
