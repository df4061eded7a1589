from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ramet.algorithms.advantages.config import TreeGrpoConfig
from ramet.algorithms.advantages.tree_grpo import TreeGrpo
from ramet.types import AdvantageInputs

Batch = Callable[..., AdvantageInputs]


NODES = torch.tensor([[0, 1, 2], [0, 1, 3], [4, 5, 6]])  # two rollouts of one tree, and one of another


def test_a_rollout_is_compared_with_its_tree_and_with_all_trees(advantage_batch: Batch) -> None:
    batch = advantage_batch([1.0, 3.0, 2.0], [0, 0, 0], node_ids=NODES)
    output = TreeGrpo(TreeGrpoConfig(eps=1e-12))(batch)
    intra, inter = torch.tensor([-(0.5**0.5), 0.5**0.5, 0.0]), torch.tensor([-1.0, 1.0, 0.0])
    torch.testing.assert_close(output.advantages[:, 0], intra + inter)
    assert output.metrics["advantage/rows_in_trees"] == pytest.approx(2 / 3)
    only = TreeGrpo(TreeGrpoConfig(eps=1e-12, inter=False))(batch).advantages[:, 0]
    torch.testing.assert_close(only, intra)


def test_without_trees_it_is_grpo(advantage_batch: Batch) -> None:
    batch = advantage_batch([1.0, 3.0, 2.0], [0, 0, 0])
    found = TreeGrpo(TreeGrpoConfig(eps=1e-12))(batch).advantages[:, 0]
    torch.testing.assert_close(found, torch.tensor([-1.0, 1.0, 0.0]))


def test_equal_rewards_and_empty_responses_give_nothing(advantage_batch: Batch) -> None:
    batch = advantage_batch([0.1] * 3, [0] * 3, node_ids=NODES)
    assert not TreeGrpo(TreeGrpoConfig())(batch).advantages.count_nonzero()
    empty = advantage_batch([1.0, 0.0], [0, 0], torch.zeros(2, 0, dtype=torch.bool))
    assert TreeGrpo(TreeGrpoConfig())(empty).advantages.shape == (2, 0)


def test_neither_comparison_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^intra and inter are both false: no rollout would have an advantage"):
        TreeGrpoConfig(intra=False, inter=False)
