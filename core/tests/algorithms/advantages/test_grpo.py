from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ramet.algorithms.advantages.config import GigpoConfig, GrpoConfig, GrpoPasskConfig, TreeGrpoConfig
from ramet.algorithms.advantages.grpo import Grpo
from ramet.helpers.group_scores import group_statistics
from ramet.types import AdvantageInputs
from ramet.types.option import option_problems

Batch = Callable[..., AdvantageInputs]


def test_an_advantage_is_the_score_relative_to_the_group(advantage_batch: Batch) -> None:
    found = Grpo(GrpoConfig())(advantage_batch([1.0, 3.0, 2.0], [0, 0, 0])).advantages
    torch.testing.assert_close(found[:, 0], torch.tensor([-1.0, 1.0, 0.0]), rtol=0, atol=2e-6)


def test_without_the_std_the_advantage_is_the_distance_from_the_mean(advantage_batch: Batch) -> None:
    found = Grpo(GrpoConfig(normalize_std=False))(advantage_batch([1.0, 4.0, 2.0, 9.0], [5, 5, 7, 7])).advantages
    assert found[:, 0].tolist() == [-1.5, 1.5, -3.5, 3.5]


@pytest.mark.parametrize("score", [0.1, 1 / 3, 1e-8, 12345.678])
@pytest.mark.parametrize("size", [2, 3, 7, 16])
def test_a_group_without_spread_has_advantages_of_exactly_zero(advantage_batch: Batch, score: float, size: int) -> None:
    output = Grpo(GrpoConfig())(advantage_batch([score] * size, [0] * size))
    assert not output.advantages.count_nonzero()
    assert output.metrics == {"advantage/rows_without_spread": 1.0}


def test_ragged_and_interleaved_groups_do_not_touch_each_other(advantage_batch: Batch) -> None:
    ids = [0, 1, 0, 1, 1, 0, 1]
    rewards = torch.tensor([1.0, 10.0, 2.0, 20.0, 40.0, 6.0, 10.0])
    together = Grpo(GrpoConfig())(advantage_batch(rewards, ids)).advantages
    for group in (0, 1):
        own = torch.tensor(ids) == group
        alone = Grpo(GrpoConfig())(advantage_batch(rewards[own], [group] * int(own.sum()))).advantages
        assert torch.equal(together[own], alone)


def test_the_order_of_rows_does_not_matter(advantage_batch: Batch) -> None:
    rewards, ids = torch.rand(24, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 5
    order = torch.randperm(24, generator=torch.Generator().manual_seed(2))
    found = Grpo(GrpoConfig())(advantage_batch(rewards, ids.tolist())).advantages
    moved = Grpo(GrpoConfig())(advantage_batch(rewards[order], ids[order].tolist())).advantages
    torch.testing.assert_close(moved, found[order], rtol=0, atol=1e-7)


def test_advantages_stand_on_masked_positions_only(advantage_batch: Batch) -> None:
    mask = torch.tensor([[True, False, True], [False, True, False]])
    found = Grpo(GrpoConfig(normalize_std=False))(advantage_batch([2.0, 0.0], [0, 0], mask)).advantages
    assert found.tolist() == [[1.0, 0.0, 1.0], [0.0, -1.0, 0.0]]


def test_token_rewards_add_to_the_score(advantage_batch: Batch) -> None:
    extra = torch.tensor([[0.0, 1.5, 0.5], [0.0, 0.0, 0.0]])
    batch = advantage_batch([0.0, 0.0], [0, 0], token_rewards=extra)
    assert Grpo(GrpoConfig(normalize_std=False))(batch).advantages[:, 0].tolist() == [1.0, -1.0]


def test_a_group_of_one_has_mean_zero_and_std_one() -> None:
    found = group_statistics(torch.tensor([5.0]), torch.tensor([3]))
    assert (found.mean.item(), found.std.item()) == (0.0, 1.0)


def test_an_empty_batch_gives_an_empty_result(advantage_batch: Batch) -> None:
    assert Grpo(GrpoConfig())(advantage_batch([], [], torch.zeros(0, 0, dtype=torch.bool))).advantages.shape == (0, 0)


@pytest.mark.parametrize("config", [GrpoConfig, GrpoPasskConfig, GigpoConfig, TreeGrpoConfig])
def test_an_eps_of_0_is_refused_since_a_group_without_spread_would_get_nan(config: Callable[..., object]) -> None:
    [problem] = option_problems(config(eps=0.0))
    assert problem.startswith("eps ")
