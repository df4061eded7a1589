"""The reward `environment`: the rollout step's rewards of the turns, their sum or the last."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.errors import ConfigError
from ramet.rollout.config import EnvironmentConfig
from ramet.types import Rollout


class EnvironmentReward:
    """`Reward`. A turn without a reward adds nothing.

    A rollout step that never gives any is refused at the first group: the sum would be 0 for everything.
    """

    per_rollout = True

    def __init__(self, config: EnvironmentConfig | None = None) -> None:
        self.config = config or EnvironmentConfig()
        clip = self.config.clip
        if clip is not None and not (len(clip) == 2 and clip[0] < clip[1]):
            raise ConfigError(f"params.clip={clip}: allowed: [lowest, highest], the first under the second; null: none")
        self._gives_rewards = False

    async def __call__(self, group: Sequence[Rollout]) -> list[float]:
        turn_rewards = [[reward for reward in rollout.turn_rewards if reward is not None] for rollout in group]
        self._gives_rewards = self._gives_rewards or any(turn_rewards)
        if not self._gives_rewards:
            raise ConfigError(
                f"rewards.environment: no turn of task {group[0].task.id!r} has a reward; it sums StepResult.reward of "
                "the rollout step (0.0 where nothing was earned): choose a rollout_step that gives it or another reward"
            )
        return [self._value(rewards) for rewards in turn_rewards]

    def _value(self, rewards: list[float]) -> float:
        value = self.config.scale * sum(rewards[-1:] if self.config.last else rewards, start=0.0)
        if self.config.clip is None:
            return value
        lowest, highest = self.config.clip
        return min(highest, max(lowest, value))
