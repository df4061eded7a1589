"""Every advantage estimator of Ramet on the same recorded groups: its mean advantage in the turn of each call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
from credit.policy import letters_of
from credit.tasks import PlantedTask

from ramet.config.choices import accept_enum_values
from ramet.config.stored import typed_options
from ramet.plugins import load_plugins
from ramet.policy.advantages import estimate
from ramet.policy.batching.rows import Row, rows_of
from ramet.policy.batching.train_batch import TrainBatch
from ramet.rollout.scoring import ScoredGroup, ScoredRollout

CRITIC_ERROR = 0.15  # standard deviation of an inexact critic's error at a state
GREEDY = 0.0  # the baseline of `remax` here: the same for all, so that only the reward ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """An estimator with its options. `critic`: the error of the values that it is given; None: it has none."""

    label: str
    name: str
    options: Mapping[str, Any]
    named_states: bool = False  # the environment names the states: all calls so far
    critic: float | None = None


ARMS = (
    Arm(label="grpo", name="grpo", options={}),
    Arm(label="rloo", name="rloo", options={}),
    Arm(label="opo", name="opo", options={}),
    Arm(label="remax", name="remax", options={}),
    Arm(label="grpo_passk", name="grpo_passk", options={}),
    Arm(label="reinforce_pp", name="reinforce_pp", options={}),
    Arm(label="reinforce_pp_baseline", name="reinforce_pp_baseline", options={}),
    Arm(label="arpo soft", name="arpo", options={"attribution": "soft"}),
    Arm(label="arpo hard", name="arpo", options={"attribution": "hard"}),
    Arm(label="aepo", name="aepo", options={}),
    Arm(label="tree_grpo", name="tree_grpo", options={}),
    Arm(label="treerl", name="treerl", options={}),
    Arm(label="gigpo", name="gigpo", options={}),
    Arm(label="gigpo, named states", name="gigpo", options={}, named_states=True),
    Arm(label="gigpo, only the turn, named states", name="gigpo", options={"omega": 100.0}, named_states=True),
    Arm(label="gae, lam 1, exact critic", name="gae", options={"lam": 1.0}, critic=0.0),
    Arm(label="gae, lam 0, exact critic", name="gae", options={"lam": 0.0}, critic=0.0),
    Arm(label="gae, lam 0, critic off by 0.15", name="gae", options={"lam": 0.0}, critic=CRITIC_ERROR),
)


def installed(arm: Arm) -> bool:
    return arm.name in load_plugins().registries.advantages


def credits_of(
    arm: Arm, groups: Sequence[ScoredGroup], tasks: Sequence[PlantedTask]
) -> dict[tuple[int, str, int], float]:
    """Return the mean advantage by (group, rollout, turn)."""
    given = [_with_states(group) for group in groups] if arm.named_states else groups
    rows = rows_of(given)
    values = None if arm.critic is None else [_values(row, groups, tasks, arm.critic) for row in rows]
    batch = TrainBatch(rows=rows, values=values)
    greedy = [GREEDY] * len(rows) if arm.name == "remax" else None
    learned, _ = estimate(_build(arm), batch, greedy_rewards=greedy)
    found: dict[tuple[int, str, int], float] = {}
    for row, advantages in zip(learned.rows, learned.advantages, strict=True):
        for turn in range(int(row.turn_ids.max()) + 1):
            inside = row.mask & (row.turn_ids == turn)
            found[row.group, row.rollout_id, turn] = float(advantages[inside].mean())
    return found


def _build(arm: Arm) -> Any:
    entry = load_plugins().registries.advantages.get(arm.name)
    if entry.config is None:
        return entry.build()
    accept_enum_values()
    return entry.build(typed_options(entry.config, dict(arm.options), "advantage.params"))


def _with_states(group: ScoredGroup) -> ScoredGroup:
    return replace(group, rollouts=tuple(map(_named, group.rollouts)))


def _named(scored: ScoredRollout) -> ScoredRollout:
    letters = letters_of(scored.rollout.response)
    keys = tuple(letters[:turn] for turn in range(len(letters) + 1))
    return replace(scored, rollout=replace(scored.rollout, state_keys=keys))


def _values(row: Row, groups: Sequence[ScoredGroup], tasks: Sequence[PlantedTask], error: float) -> Any:
    """Return the critic's value of each token: that of the state in which its turn began, with the state's error."""
    group = groups[row.group]
    scored = next(scored for scored in group.rollouts if scored.rollout.id == row.rollout_id)
    letters, planted = letters_of(scored.rollout.response), tasks[row.group]
    states = [letters[:turn] for turn in range(len(letters) + 1)]
    values = [planted.value(s) + error * Random(f"{planted.id} {s}").gauss(0, 1) for s in states]
    return np.array([values[min(max(turn, 0), len(states) - 1)] for turn in row.turn_ids], np.float32)
