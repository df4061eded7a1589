"""The reward `environment`: the sum of the rewards that the rollout step gave turn by turn."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.errors import ConfigError
from ramet.types import Rollout


class EnvironmentReward:
    """`Reward`. A turn without a reward adds nothing.

    A rollout step that never gives any is refused at the first group: the sum would be 0 for everything.
    """

    per_rollout = True

    def __init__(self) -> None:
        self._gives_rewards = False

    async def __call__(self, group: Sequence[Rollout]) -> list[float]:
        given = [[reward for reward in rollout.turn_rewards if reward is not None] for rollout in group]
        self._gives_rewards = self._gives_rewards or any(given)
        if not self._gives_rewards:
            raise ConfigError(
                f"rewards.environment: no turn of task {group[0].task.id!r} has a reward; it sums StepResult.reward of "
                "the rollout step (0.0 where nothing was earned): choose a rollout_step that gives it or another reward"
            )
        return [sum(rewards, start=0.0) for rewards in given]
