from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ramet.algorithms.advantages.config import GigpoConfig
from ramet.algorithms.advantages.gigpo import Gigpo
from ramet.types import AdvantageInputs

Batch = Callable[..., AdvantageInputs]


TURNS = torch.tensor([[0, 0, 1], [0, 1, 1]])  # of two rollouts, all tokens sampled
CONFIG = GigpoConfig(gamma=0.5, normalize_std=False, omega=2.0)


def test_turns_that_began_in_the_same_state_are_compared_by_their_returns(advantage_batch: Batch) -> None:
    batch = replace(
        advantage_batch([4.0, 0.0], [0, 0]), turn_ids=TURNS, state_ids=torch.tensor([[1, 2], [2, 3]])
    )  # the second turn of the first rollout and the first turn of the second began in state 2
    output = Gigpo(CONFIG)(batch)
    # episodes: 2 and -2; returns 2, 4 and 0, 0: of state 2 they are 4 and 0
    assert output.advantages.tolist() == [[2.0, 2.0, 2.0 + 2 * 2.0], [-2.0 - 2 * 2.0, -2.0, -2.0]]
    assert output.metrics["advantage/turns_compared"] == 0.5


def test_without_names_the_prompt_is_the_state_of_first_turns(advantage_batch: Batch) -> None:
    batch = replace(advantage_batch([4.0, 0.0], [0, 0]), turn_ids=TURNS)
    found = Gigpo(CONFIG)(batch).advantages
    assert found.tolist() == [[2.0 + 2 * 1.0, 2.0 + 2 * 1.0, 2.0], [-2.0 - 2 * 1.0, -2.0, -2.0]]  # returns 2 and 0


def test_without_names_forks_began_in_the_same_state(advantage_batch: Batch) -> None:
    nodes = torch.tensor([[0, 1, 2], [0, 1, 3]])
    turns = torch.tensor([[0, 0, 1], [0, 0, 1]])
    batch = replace(advantage_batch([4.0, 0.0], [0, 0], node_ids=nodes), turn_ids=turns)
    found = Gigpo(CONFIG)(batch).advantages
    assert found.tolist() == [[2.0 + 2 * 1.0, 4.0, 2.0 + 2 * 2.0], [-2.0 - 2 * 1.0, -4.0, -2.0 - 2 * 2.0]]


def test_states_of_different_groups_are_different(advantage_batch: Batch) -> None:
    turns, states = torch.zeros(4, 1, dtype=torch.int64), torch.zeros(4, 1, dtype=torch.int64)
    batch = advantage_batch([4.0, 0.0, 1.0, 0.0], [0, 0, 1, 1], torch.ones(4, 1, dtype=torch.bool))
    found = Gigpo(CONFIG)(replace(batch, turn_ids=turns, state_ids=states)).advantages
    assert found[:, 0].tolist() == [6.0, -6.0, 1.5, -1.5]


def test_rewards_of_turns_add_up_to_the_rollouts(advantage_batch: Batch) -> None:
    extra = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    batch = replace(
        advantage_batch([4.0, 0.0], [0, 0], token_rewards=extra),
        turn_ids=TURNS,
        state_ids=torch.tensor([[0, 1], [0, 1]]),
        turn_rewards=torch.tensor([[3.0, float("nan"), 7.0], [1.0, float("nan"), float("nan")]]),
    )
    found = Gigpo(GigpoConfig(gamma=1.0, normalize_std=False))(batch).advantages
    # by turn: 3, 1 and 1, -1 + 1; scores 4 and 1; returns 4, 1 and 1, 0
    assert found.tolist() == [[3.0, 3.0, 2.0], [-3.0, -2.0, -2.0]]


def test_equal_rewards_and_empty_responses_give_nothing(advantage_batch: Batch) -> None:
    assert not Gigpo(GigpoConfig())(advantage_batch([0.1] * 3, [0] * 3)).advantages.count_nonzero()
    turns = torch.tensor([[0, 0, 1]] * 7)
    several = replace(advantage_batch([0.7] * 7, [0] * 7), turn_ids=turns)  # 0.7 gamma is no float32
    assert not Gigpo(GigpoConfig())(several).advantages.count_nonzero()
    for mask in (torch.zeros(2, 0, dtype=torch.bool), torch.zeros(2, 2, dtype=torch.bool)):
        output = Gigpo(GigpoConfig())(advantage_batch([1.0, 0.0], [0, 0], mask))
        assert not output.advantages.count_nonzero()
        assert output.metrics["advantage/turns_compared"] == 0
