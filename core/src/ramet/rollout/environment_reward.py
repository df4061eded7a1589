"""The reward `environment`: rewards of turns, their sum or the last, and an agent's rewards of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.errors import ConfigError
from ramet.rollout.config import EnvironmentConfig
from ramet.types import Rollout, Score, Services


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

    async def start(self, services: Services) -> None:
        """Begin a run: whether its turns have rewards is noted over all of its groups, in one process."""
        self._gives_rewards = False

    async def __call__(self, group: Sequence[Rollout]) -> list[float | Score]:
        turn_rewards = [[reward for reward in rollout.turn_rewards if reward is not None] for rollout in group]
        self._gives_rewards = self._gives_rewards or any(turn_rewards) or any(r.token_rewards for r in group)
        if not self._gives_rewards:
            raise ConfigError(
                f"rewards.environment: no turn of task {group[0].task.id!r} has a reward; it sums StepResult.reward of "
                "the rollout step (0.0 where nothing was earned): choose a rollout_step that gives it or another reward"
            )
        return [self._score(rollout, rewards) for rollout, rewards in zip(group, turn_rewards, strict=True)]

    def _score(self, rollout: Rollout, rewards: list[float]) -> float | Score:
        value, scale = self._value(rewards), self.config.scale
        if not rollout.token_rewards:
            return value
        return Score(value=value, token_rewards={at: scale * reward for at, reward in rollout.token_rewards.items()})

    def _value(self, rewards: list[float]) -> float:
        value = self.config.scale * sum(rewards[-1:] if self.config.last else rewards, start=0.0)
        if self.config.clip is None:
            return value
        lowest, highest = self.config.clip
        return min(highest, max(lowest, value))
