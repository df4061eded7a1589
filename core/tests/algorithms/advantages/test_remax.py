from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from ramet.algorithms.advantages.remax import Remax
from ramet.types import AdvantageInputs

Batch = Callable[..., AdvantageInputs]


def test_the_baseline_is_the_greedy_rollout_of_the_task(advantage_batch: Batch) -> None:
    batch = replace(advantage_batch([1.0, 0.0, 0.5], [0, 0, 1]), greedy_rewards=torch.tensor([0.25, 0.25, 0.5]))
    output = Remax()(batch)
    assert output.advantages[:, 0].tolist() == [0.75, -0.25, 0.0]
    assert output.metrics == {"advantage/better_than_greedy": pytest.approx(1 / 3)}


def test_a_token_reward_counts_for_what_came_before_it(advantage_batch: Batch) -> None:
    extra = torch.tensor([[0.0, 2.0, 1.0]])
    batch = replace(advantage_batch([1.0], [0], token_rewards=extra), greedy_rewards=torch.tensor([1.0]))
    output = Remax()(batch)
    assert output.advantages.tolist() == [[3.0, 3.0, 1.0]]
    assert output.metrics == {"advantage/better_than_greedy": 1.0}  # with its token rewards it has 4
