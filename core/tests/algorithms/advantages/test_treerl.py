from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ramet.algorithms.advantages.treerl import TreeRl
from ramet.types import AdvantageInputs

Batch = Callable[..., AdvantageInputs]


# Three leaves: the first two share two tokens, all of one prompt; the third is alone.
NODES = torch.tensor([[0, 1, 2, 3], [0, 1, 4, -1], [5, 6, 7, 8]])
MASK = torch.tensor([[True, True, True, True], [True, True, True, False], [True, False, True, True]])


def test_a_node_is_worth_the_mean_of_its_leaves(advantage_batch: Batch) -> None:
    found = TreeRl()(advantage_batch([3.0, 0.0, 0.0], [0, 0, 0], MASK, node_ids=NODES)).advantages
    # Leave-one-out scores 3, -1.5, -1.5; the shared node 0.75, under the root of 0, with two leaves.
    shared = 2 * 0.75 / 2**0.5
    expected = torch.tensor(
        [
            [shared, shared, 3 + 2.25, 3 + 2.25],
            [shared, shared, -1.5 - 2.25, 0.0],
            [-3.0, 0.0, -3.0, -3.0],
        ]
    )
    torch.testing.assert_close(found, expected)


def test_without_forks_it_is_twice_the_distance_from_the_others(advantage_batch: Batch) -> None:
    found = TreeRl()(advantage_batch([1.0, 4.0, 1.0], [0, 0, 0])).advantages
    assert found[:, 0].tolist() == [-3.0, 6.0, -3.0]


def test_a_nested_fork_is_compared_with_the_node_that_it_left(advantage_batch: Batch) -> None:
    nodes = torch.tensor([[0, 1, 2], [0, 1, 3], [0, 4, 5], [0, 4, 6]])
    found = TreeRl()(advantage_batch([4.0, 0.0, 0.0, 0.0], [0] * 4, node_ids=nodes)).advantages
    leave_one_out = torch.tensor([4.0, -4 / 3, -4 / 3, -4 / 3])
    inner = (4 - 4 / 3) / 2
    assert found[0, 0].item() == pytest.approx(0, abs=1e-12)  # the mean over all leaves is the root's
    assert found[0, 1].item() == pytest.approx(2 * inner / 2**0.5)
    assert found[0, 2].item() == pytest.approx(2 * leave_one_out[0].item() - inner)


def test_empty_responses_have_no_nodes(advantage_batch: Batch) -> None:
    assert TreeRl()(advantage_batch([1.0, 0.0], [0, 0], torch.zeros(2, 0, dtype=torch.bool))).advantages.numel() == 0
