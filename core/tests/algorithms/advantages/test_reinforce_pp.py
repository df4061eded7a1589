from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ramet.algorithms.advantages.config import ReinforcePpConfig
from ramet.algorithms.advantages.reinforce_pp import ReinforcePp, ReinforcePpBaseline
from ramet.types import AdvantageInputs

Batch = Callable[..., AdvantageInputs]


def test_returns_are_discounted_over_sampled_tokens_and_whitened_over_the_step(advantage_batch: Batch) -> None:
    mask = torch.tensor([[True, False, True], [True, True, False]])
    found = ReinforcePp(ReinforcePpConfig(gamma=0.5))(advantage_batch([4.0, 0.0], [0, 1], mask)).advantages
    # returns 2, 4, 0, 0: mean 1.5, variance 11 / 3
    expected = torch.tensor([[0.5, 0.0, 2.5], [-1.5, -1.5, 0.0]]) / (11 / 3) ** 0.5
    torch.testing.assert_close(found, expected)


def test_as_released_no_reward_reaches_what_was_sampled_before_a_tool_result(advantage_batch: Batch) -> None:
    mask = torch.tensor([[True, False, True, True], [True, True, True, False]])
    extra = torch.tensor([[0.0, 8.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    config = ReinforcePpConfig(gamma=0.5, skip_inserted=False)
    found = ReinforcePp(config)(advantage_batch([4.0, 0.0], [0, 1], mask, extra)).advantages
    # returns 0 | 2, 4 and 0.5, 1, 0: what an inserted token earned reaches nobody
    returns = torch.tensor([0.0, 2.0, 4.0, 0.5, 1.0, 0.0])
    torch.testing.assert_close(found[mask], (returns - returns.mean()) / returns.var().add(1e-8).sqrt())


def test_the_baseline_variant_is_whitened_over_the_step_instead_of_the_group(advantage_batch: Batch) -> None:
    mask = torch.tensor([[True, True], [True, False], [True, False], [True, False]])
    found = ReinforcePpBaseline()(advantage_batch([3.0, 1.0, 10.0, 0.0], [0, 0, 1, 1], mask)).advantages
    centred = torch.tensor([1.0, 1.0, -1.0, 5.0, -5.0])
    torch.testing.assert_close(found[mask], (centred - centred.mean()) / centred.var().sqrt())


@pytest.mark.parametrize("mask", [[[True]], [[False, False]]])
def test_one_token_or_none_gives_no_advantage_and_no_nan(advantage_batch: Batch, mask: list[list[bool]]) -> None:
    batch = advantage_batch([3.0], [0], torch.tensor(mask))
    for estimator in (ReinforcePp(ReinforcePpConfig()), ReinforcePpBaseline()):
        assert not estimator(batch).advantages.count_nonzero()
