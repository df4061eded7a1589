"""Which sections and groups exist, and which of them a job builds.

A key that the user set in a section that the job does not build would be silently inert, so it is an error. Presets
and experiments may set any section: one experiment serves `ramet sft`, `ramet train` and `ramet eval`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

JOBS: dict[str, tuple[str, ...]] = {
    "train": (
        "run", "data", "model", "engine", "rollout", "rollout_step", "branch_policy", "tools", "rewards",
        "advantage", "policy_loss", "train", "policy", "evaluate", "benchmarks", "cluster", "trackers", "wandb",
    ),
    "sft": ("run", "model", "rollout_step", "tools", "sft", "cluster", "trackers", "wandb"),
    "eval": (
        "run", "data", "model", "engine", "rollout", "rollout_step", "tools", "evaluate", "benchmarks",
        "cluster", "trackers", "wandb",
    ),
    "data": ("data", "model", "rollout_step", "tools", "sft"),
    "play": ("run", "data", "model", "engine", "rollout", "rollout_step", "tools"),
    "judge": ("run", "model", "rewards"),
}  # fmt: skip
# Commands that look at any run's configuration: they take its keys as they are, whatever they use of them.
ANY = ("tool", "doctor")
TRUST = "--trust-recipe"  # FILE: may name programs, though it is in one of the user's folders (`config.trust`)
NO_MODEL = "model.path=''"  # for those that need none
JOBS |= {name: tuple(dict.fromkeys(section for sections in JOBS.values() for section in sections)) for name in ANY}

# Keys inside a built section that the job does not read, and what it reads instead.
REPLACED: dict[str, dict[str, str | None]] = {
    "train": {
        "evaluate.k": "train.eval_k",
        "evaluate.pass_at": None,
        "evaluate.max_masked_share": "rollout.max_infra_rate",
        "evaluate.out": None,
    },
    "eval": {
        "rollout.group_size": "evaluate.k",
        "rollout.temperature": "evaluate.temperature",
        "rollout.top_p": "evaluate.top_p",
        "rollout.top_k": "evaluate.top_k",
        "rollout.step_deadline_s": "rollout.deadline_s",
        "rollout.max_infra_rate": "evaluate.max_masked_share",
    },
    "sft": {"cluster.address": None, "cluster.rollout_workers": None, "cluster.colocate": None},
    "play": {
        "run.name": None,
        "run.root": None,
        "run.private": None,
        "run.allow_config_change": None,
        "data.train": None,
        "data.valid": None,
        "data.columns": None,
        "data.limit": None,
        "data.valid_limit": None,
        "data.shuffle": None,
        "data.weights": None,
        "data.curriculum": None,
        "data.min_difficulty": None,
        "data.max_difficulty": None,
        "data.on_bad_row": None,
        "rollout.group_size": "--n",
        "rollout.step_deadline_s": "rollout.deadline_s",
        "rollout.max_infra_rate": None,
    },
}


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
OWN_TRACKERS = ("console", "jsonl", "wandb", "tensorboard")
GROUPS = (*(group.name for group in COMPONENTS), CLUSTER, *PRESETS)


def without_model(overrides: Sequence[str]) -> list[str]:
    """These keys for a command that needs no model: with an empty path, unless they may name one."""
    names_one = any(text.lstrip("+").startswith(("model.path=", "experiment=")) for text in overrides)
    return [*overrides] if names_one else [*overrides, NO_MODEL]


def unused_key(key: str, job: str) -> str | None:
    """What is wrong with setting `key` for this job, None if the job reads it. Presets are always allowed."""
    section = key.partition(".")[0]
    users = ", ".join(name for name, sections in JOBS.items() if section in sections and name not in ANY)
    if not users:
        return None  # a preset group, or no section at all, which is another mistake
    if section not in JOBS[job]:
        return f"{key}: `ramet {job}` does not build the section {section!r} (built by: {users}); leave the key out"
    replaced = REPLACED.get(job, {})
    owner = next((one for one in replaced if f"{key}.".startswith(f"{one}.")), None)
    if owner is None:
        return None
    instead = replaced[owner]
    return f"{key}: `ramet {job}` does not read it; {'leave the key out' if instead is None else f'set {instead}'}"
