"""Groups that a configuration has, and what every command knows of it. Imports nothing heavy: each command does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TRUST = "--trust-recipe"  # FILE: may name programs, though it is in one of the user's folders (`config.trust`)
NO_MODEL = "model.path=''"  # for those that need none


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigGroup:
    """One configuration group that plugins fill. `kind` is its field in `Registries`, None for the core's own."""

    name: str
    kind: str | None
    many: bool = False  # a map of names instead of one choice


COMPONENTS: tuple[ConfigGroup, ...] = (
    ConfigGroup(name="engine", kind=None),
    ConfigGroup(name="rollout_step", kind="rollout_steps"),
    ConfigGroup(name="branch_policy", kind="branch_policies"),
    ConfigGroup(name="advantage", kind="advantages"),
    ConfigGroup(name="policy_loss", kind="policy_losses"),
    ConfigGroup(name="tools", kind="tools", many=True),
    ConfigGroup(name="rewards", kind="rewards", many=True),
    ConfigGroup(name="benchmarks", kind="benchmarks", many=True),
)
CLUSTER = "cluster"  # a group of the core's own files; its other keys are the same for all of them
PRESETS = ("algorithm", "experiment")
OWN_TRACKERS = ("console", "jsonl", "wandb", "tensorboard", "samples")
GROUPS = (*(group.name for group in COMPONENTS), CLUSTER, *PRESETS)


def without_model(overrides: Sequence[str]) -> list[str]:
    """Return these keys for a command that needs no model: with an empty path, unless they may name one."""
    names_one = any(text.lstrip("+").startswith(("model.path=", "experiment=")) for text in overrides)
    return [*overrides] if names_one else [*overrides, NO_MODEL]
