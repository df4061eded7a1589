"""Names of keys in other trainers: verl (`ppo_trainer.yaml`), TRL (`GRPOConfig`, `SFTConfig`), OpenRLHF's options.

Used for one thing: the "did you mean" of a key that does not exist. No alias is ever accepted as a key. A key with a
row in the tables of `ramet migrate` (`ramet.config.foreign`) leads to where that translates it. Other names of a key,
the core's or a component's option, are declared with it (`option(aka=…)`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ramet.config.foreign import TABLES, KeyRow, table
from ramet.config.keys import OTHER_NAMES
from ramet.config.sections import COMPONENTS
from ramet.plugins import load_plugins
from ramet.plugins.registry import Registry

# Sections of others that only look like a section of Ramet's: a key in them is not a slip of the keyboard.
FOREIGN_SECTIONS = frozenset({"actor_rollout_ref", "trainer", "critic", "custom_reward_function", "reward_model"})
COMPONENT_SECTIONS = frozenset(group.name for group in COMPONENTS)


def names_of_others() -> dict[str, list[str]]:
    """Return our keys with the names that others have for them.

    An option that several components of a group have counts with the names that any of them declares.
    """
    names = {key: [*aliases] for key, aliases in OTHER_NAMES.items()}
    plugins = load_plugins()
    for group in (group for group in COMPONENTS if not group.many):
        registry: Registry[Any] = plugins.engines if group.kind is None else getattr(plugins.registries, group.kind)
        for options in (entry.config for entry in registry if entry.config is not None):
            for field in dataclasses.fields(options):
                if isinstance(aliases := field.metadata.get("aka"), list) and aliases:
                    names.setdefault(f"{group.name}.params.{field.name}", []).extend(aliases)
    return names


def meant(key: str, accepts: Callable[[str], bool]) -> list[str] | None:
    """Our keys for what others call `key`, as far as the job `accepts` them; None if no other calls anything so.

    The longest end of the key that is a name of others counts: `actor_rollout_ref.rollout.n` is `rollout.n`. Options of
    a component are its own: there only complete names count.
    """
    for _, row in rows_of(key):
        if row.rule != "none" and (translated := [target for target in row.ours if accepts(target)]):
            return translated
    parts = key.split(".")
    ends = 1 if parts[0] in COMPONENT_SECTIONS else len(parts)
    ours = names_of_others()
    for start in range(ends):
        name = ".".join(parts[start:])
        if start and accepts(name):
            return [name]
        targets = [target for target, names in ours.items() if name in names]
        if targets:
            return [target for target in targets if accepts(target)]
    return None


def rows_of(key: str) -> list[tuple[str, KeyRow]]:
    """Trainers with the row of this key, which may be cut at its beginning: `rollout.mode` of verl."""
    found = []
    for name_of_table, written in TABLES.items():
        rows = [
            row
            for name, row in table(name_of_table).items()
            if name == key or (name.endswith(f".{key}") and "." in key)
        ]
        found += [(written, rows[0])] if len({row.ours for row in rows}) == 1 else []
    return found


def reason(key: str) -> str:
    """Why a key of another trainer has no counterpart; empty if it has one, or no trainer has the key."""
    whys = (f" {trainer}'s key, without counterpart: {row.why}." for trainer, row in rows_of(key) if row.why)
    return next(whys, "")
