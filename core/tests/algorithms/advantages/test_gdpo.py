from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from ramet.algorithms.advantages.config import GdpoConfig
from ramet.algorithms.advantages.gdpo import Gdpo
from ramet.errors import ConfigError
from ramet.types import AdvantageInputs

Batch = Callable[..., AdvantageInputs]
NAN = float("nan")
HALF = math.sqrt(0.5)  # two scores 0 and 1 have the mean 0.5 and the standard deviation sqrt(0.5): A is -HALF and HALF


def advantages(
    batch: AdvantageInputs, parts: dict[str, list[float]], configured: dict[str, float], **config: Any
) -> Any:
    given = {name: torch.tensor(values) for name, values in parts.items()}
    config = {"eps": 1e-12, "batch_std": False, **config}
    found = Gdpo(GdpoConfig(**config))(replace(batch, reward_parts=given, reward_weights=configured))
    return found.advantages[:, 0].tolist()


def test_a_bonus_of_small_spread_counts_as_much_as_the_answer(advantage_batch: Batch) -> None:
    """GRPO on the sums 0, 0.1, 1 and 1.1 would give the bonus a tenth of the answer's weight."""
    parts = {"answer": [0.0, 0.0, 1.0, 1.0], "bonus": [0.0, 0.1, 0.0, 0.1]}
    found = advantages(advantage_batch([0.0, 0.1, 1.0, 1.1], [3] * 4), parts, {"answer": 1.0, "bonus": 1.0})
    step = math.sqrt(3) / 2  # 0, 0, 1, 1: deviation 0.5, standard deviation sqrt(1 / 3)
    assert found == pytest.approx([-2 * step, 0.0, 0.0, 2 * step], abs=1e-6)


def test_rewards_keep_their_configured_weights_and_parts_of_a_reward_are_left_out(advantage_batch: Batch) -> None:
    parts = {"a": [0.0, 1.0, 5.0, 5.0], "b": [7.0, 0.0, 0.0, 9.0], "b/detail": [0.0, 1.0, 2.0, 3.0]}
    found = advantages(advantage_batch([0.0] * 4, [0, 0, 1, 1]), parts, {"a": 1.0, "b": 0.5})
    assert found == pytest.approx([-0.5 * HALF, 0.5 * HALF, -0.5 * HALF, 0.5 * HALF])


def test_weights_of_its_own_choose_parts(advantage_batch: Batch) -> None:
    parts = {"judge": [0.0, 0.0], "judge/tone": [0.0, 2.0]}
    batch = advantage_batch([0.0, 0.0], [0, 0])
    assert advantages(batch, parts, {"judge": 1.0}, weights={"judge/tone": 3.0}) == pytest.approx([-3 * HALF, 3 * HALF])
    assert not any(advantages(batch, parts, {"judge": 1.0}, weights={"judge/rare": 3.0}))  # no rollout of the step
    with pytest.raises(
        ConfigError, match=r"advantage\.params\.weights: no reward 'judg'; there are: judge, judge/tone"
    ):
        advantages(batch, parts, {"judge": 1.0}, weights={"judg": 1.0})


def test_a_reward_counts_only_where_it_applies(advantage_batch: Batch) -> None:
    parts = {"a": [0.0, 1.0, NAN, NAN, 4.0], "b": [NAN, NAN, 1.0, 0.0, NAN]}
    batch = advantage_batch([0.0] * 5, [0, 0, 0, 0, 1])
    assert advantages(batch, parts, {"a": 1.0, "b": 1.0}) == pytest.approx([-HALF, HALF, HALF, -HALF, 0.0])


def test_the_step_is_scaled_to_a_standard_deviation_of_one(advantage_batch: Batch) -> None:
    parts = {"a": [0.0, 1.0, 0.0, 0.0], "b": [0.0, 1.0, 0.0, 0.0]}
    found = advantages(advantage_batch([0.0] * 4, [0, 0, 1, 1]), parts, {"a": 1.0, "b": 1.0}, batch_std=True)
    # The sums are -2 HALF, 2 HALF, 0 and 0, whose standard deviation is sqrt(4 / 3).
    assert found == pytest.approx([-math.sqrt(1.5), math.sqrt(1.5), 0.0, 0.0])


def test_token_rewards_are_one_more_reward(advantage_batch: Batch) -> None:
    tokens = torch.tensor([[0.0, 0.2, 0.3], [0.0, 0.0, 0.0]])
    batch = advantage_batch([1.0, 1.0], [0, 0], token_rewards=tokens)
    assert advantages(batch, {"a": [1.0, 1.0]}, {"a": 1.0}) == pytest.approx([HALF, -HALF])


def test_the_share_of_rows_that_nothing_tells_apart_is_reported(advantage_batch: Batch) -> None:
    parts = {"a": torch.tensor([0.0, 1.0, 1.0, 1.0]), "b": torch.tensor([1.0, 1.0, 0.0, 0.0])}
    found = Gdpo(GdpoConfig())(replace(advantage_batch([1.0] * 4, [0, 0, 1, 1]), reward_parts=parts))
    assert found.metrics == {"advantage/rows_without_spread": 0.5}
