from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ramet.algorithms.offpolicy import off_policy_weights
from ramet.config.schema import TrainConfig
from ramet.types import LossInputs

Tokens = Callable[..., LossInputs]


@pytest.fixture
def tokens() -> Tokens:
    """All of one sequence, sampled, of the policy itself, with advantage 1, unless said otherwise."""

    def build(old: list[float], engine: list[float], **given: list[float]) -> LossInputs:
        n = len(old)
        return LossInputs(
            logprobs=torch.tensor(given.get("policy", old)),
            old_logprobs=torch.tensor(old),
            engine_logprobs=torch.tensor(engine),
            advantages=torch.tensor(given.get("advantages", [1.0] * n)),
            mask=torch.tensor(given.get("mask", [1.0] * n)).bool(),
            sequence_ids=torch.tensor(given.get("sequences", [0.0] * n)).long(),
            **{name: torch.zeros(n).long() for name in ("rollout_ids", "group_ids", "turn_ids", "policy_versions")},
        )

    return build


def test_a_weight_is_the_truncated_ratio_of_trainer_to_engine(tokens: Tokens) -> None:
    found = off_policy_weights(tokens([-1.0, -1.0, 0.0], [-1.0, -0.5, -3.0]), TrainConfig(tis_cap=2.0))
    torch.testing.assert_close(found.weight, torch.tensor([1.0, 0.6065306597, 2.0]))
    assert found.truncated.tolist() == [0.0, 0.0, 1.0]
    assert found.left_out.tolist() == [0.0, 0.0, 0.0]


def test_weights_carry_no_gradient(tokens: Tokens) -> None:
    given = tokens([0.0, 0.0, 0.0], [1.0, 1.0, 1.0])
    given.old_logprobs.requires_grad_()
    for options in (TrainConfig(), TrainConfig(off_policy={"tis_level": "sequence"})):
        assert not off_policy_weights(given, options).weight.requires_grad


def test_without_a_cap_there_is_no_correction(tokens: Tokens) -> None:
    found = off_policy_weights(tokens([0.0, 0.0], [5.0, -5.0]), TrainConfig(tis_cap=None))
    assert found.weight.tolist() == [1.0, 1.0]
    assert found.truncated.tolist() == [0.0, 0.0]


def test_a_sequence_has_the_product_of_its_tokens_ratios_and_inserted_tokens_none(tokens: Tokens) -> None:
    given = tokens(
        [-1.0, 0.0, -1.5, -1.0, -3.0], [-1.2, 9.0, -1.6, -2.0, -3.0],
        mask=[1.0, 0.0, 1.0, 1.0, 1.0], sequences=[0.0, 0.0, 0.0, 1.0, 1.0],
    )  # fmt: skip
    found = off_policy_weights(given, TrainConfig(tis_cap=2.0, off_policy={"tis_level": "sequence"}))
    e = 2.718281828
    torch.testing.assert_close(found.weight, torch.tensor([e**0.3, e**0.3, e**0.3, 2.0, 2.0]))
    assert found.truncated.tolist() == [0.0, 0.0, 0.0, 1.0, 1.0]


def test_a_token_whose_ratio_leaves_the_band_weighs_nothing(tokens: Tokens) -> None:
    given = tokens([-1.0, -1.0, -1.0, 0.0], [-1.1, -0.2, -2.8, -9.0], mask=[1.0, 1.0, 1.0, 0.0])
    found = off_policy_weights(given, TrainConfig(tis_cap=None, off_policy={"token_band": [0.5, 5.0]}))
    assert found.weight.tolist() == [1.0, 0.0, 0.0, 1.0]  # e^0.1, e^-0.8, e^1.8; the last one was not sampled
    assert found.left_out.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_a_sequence_whose_mean_leaves_the_band_weighs_nothing(tokens: Tokens) -> None:
    given = tokens(
        [-1.0, -1.0, -1.0, -1.0], [-1.4, -0.6, -1.4, -1.2], sequences=[0.0, 0.0, 1.0, 1.0]
    )  # means of log rho: 0 and 0.3
    found = off_policy_weights(given, TrainConfig(tis_cap=None, off_policy={"sequence_band": [0.9, 1.1]}))
    assert found.weight.tolist() == [1.0, 1.0, 0.0, 0.0]


def test_a_negative_sequence_that_the_policy_left_weighs_nothing(tokens: Tokens) -> None:
    given = tokens(
        [-1.0] * 6, [-1.0] * 6, policy=[-1.5, -1.5, -1.5, -1.5, -1.0, -1.2],
        advantages=[-1.0, -1.0, 1.0, 1.0, -1.0, -1.0], sequences=[0.0, 0.0, 1.0, 1.0, 2.0, 2.0],
    )  # fmt: skip
    found = off_policy_weights(given, TrainConfig(tis_cap=None, off_policy={"negative_gap_max": 0.3}))
    assert found.weight.tolist() == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]


def test_corrections_multiply_and_an_empty_micro_batch_has_no_weights(tokens: Tokens) -> None:
    masks = {"token_band": [0.5, 2.0], "sequence_band": [0.5, 2.5], "negative_gap_max": 1.0}
    options = TrainConfig(tis_cap=1.5, off_policy=masks)
    found = off_policy_weights(tokens([-1.0, -1.0], [-1.5, -2.0]), options)
    torch.testing.assert_close(found.weight, torch.tensor([1.5, 0.0]))
    assert off_policy_weights(tokens([], []), options).weight.tolist() == []


def test_a_weight_stays_finite_without_a_practical_cap(tokens: Tokens) -> None:
    found = off_policy_weights(tokens([0.0, -200.0, -1.0], [-200.0, 0.0, -1.0]), TrainConfig(tis_cap=1e30))
    torch.testing.assert_close(found.weight, torch.tensor([20.0, -20.0, 0.0]).exp())
    assert found.clamped.tolist() == [1.0, 1.0, 0.0]
