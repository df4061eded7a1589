"""Which rewards may be asked in any process of a run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ramet.components.build import may_move
from ramet.rollout.environment_reward import EnvironmentReward
from ramet.rollout.scoring import WeightedReward
from ramet.types import Reward, Rollout, Services, per_rollout


class Compares:
    """Its scores depend on the group."""

    async def __call__(self, group: Sequence[Rollout]) -> list[float]:
        return [float(len(group))] * len(group)


class HasAClient:
    per_rollout = True

    async def __call__(self, group: Sequence[Rollout]) -> list[float]:
        return [1.0] * len(group)

    async def aclose(self) -> None: ...


class IsStarted(Compares):
    per_rollout = True

    async def start(self, services: Services) -> None: ...


PURE = per_rollout(lambda rollout: float(len(rollout.segments)))


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([PURE], True),
        ([PURE, PURE], True),
        ([PURE, Compares()], False),
        ([PURE, HasAClient()], True),
        ([IsStarted()], False),
        ([EnvironmentReward()], False),  # it notes over the run whether turns have rewards
    ],
)
def test_only_rewards_of_single_rollouts_that_share_nothing_over_the_run_may_be_asked_anywhere(
    rewards: list[Reward], expected: bool
) -> None:
    assert may_move([WeightedReward(name="r", plugin="p", reward=reward) for reward in rewards]) is expected
