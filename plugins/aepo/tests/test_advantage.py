"""The entropy-aware advantage, by hand: two rollouts of one group, and two of another."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ramet import AdvantageInputs, ConfigError, StopReason
from ramet.testing import check_advantage
from ramet.types.option import option_problems
from ramet_aepo.advantage import AepoAdvantage
from ramet_aepo.config import AepoAdvantageConfig

NAN = float("nan")
MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 0, 0], [1, 1, 0]], dtype=torch.bool)
# Trained: 1, 2, 0, 3, 1, 5. Mean 2, squares 1 + 0 + 4 + 1 + 1 + 9 = 16, unbiased variance 3.2.
ENTROPIES = torch.tensor([[1.0, 2.0, 99.0], [0.0, 99.0, NAN], [3.0, 99.0, 99.0], [1.0, 5.0, NAN]])
STD = 3.2**0.5


def batch(rewards: tuple[float, ...] = (1.0, 0.0, 0.0, 3.0)) -> AdvantageInputs:
    zeros = torch.zeros(4, 3)
    return AdvantageInputs(
        rewards=torch.tensor(rewards),
        reward_parts={},
        mask=MASK,
        group_ids=torch.tensor([7, 7, 2, 2]),
        turn_ids=torch.zeros(4, 3, dtype=torch.int64),
        thread_ids=torch.zeros(4, 3, dtype=torch.int64),
        node_ids=torch.arange(12).view(4, 3),
        parent=torch.full((4,), -1),
        fork_position=torch.zeros(4, dtype=torch.int64),
        stop=[StopReason.ANSWER] * 4,
        n_tool_calls=torch.zeros(4, dtype=torch.int64),
        engine_logprobs=zeros,
        policy_versions=torch.zeros(4, 3, dtype=torch.int64),
        entropies=ENTROPIES,
    )


def advantages(inputs: AdvantageInputs | None = None, **config: object) -> list[list[float]]:
    estimator = AepoAdvantage(AepoAdvantageConfig(eps=1e-12, **config))  # type: ignore[arg-type]
    found: list[list[float]] = estimator(batch() if inputs is None else inputs).advantages.tolist()
    return found


def test_the_advantage_by_hand() -> None:
    """A = ±1 / sqrt(2) in both groups; the entropies are compared over the whole batch, not by group."""
    a, step = 0.5**0.5, 0.2 / STD
    expected = [[a * (1 - step), a, 0], [-a * (1 - 2 * step), 0, 0], [-a * (1 + step), 0, 0],
                [a * (1 - step), a * (1 + 3 * step), 0]]  # fmt: skip
    assert [pytest.approx(row) for row in expected] == advantages()


def test_without_a_weight_it_is_the_groups_advantage() -> None:
    a = 0.5**0.5
    assert advantages(entropy_weight=0.0) == [
        pytest.approx(row) for row in ([a, a, 0], [-a, 0, 0], [-a, 0, 0], [a, a, 0])
    ]
    assert [row[0] for row in advantages(entropy_weight=0.0, normalize_std=False)] == [0.5, -0.5, -1.5, 1.5]


def test_the_factor_never_turns_an_advantage_around_unless_it_may() -> None:
    """a = 1: 1 + z is 1 - 2 / sqrt(3.2) = -0.118 for an entropy of 0, and 1 - 1 / sqrt(3.2) = 0.441 for one of 1."""
    a = 0.5**0.5
    assert advantages(entropy_weight=1.0)[1][0] == 0.0
    assert advantages(entropy_weight=1.0, keep_sign=False)[1][0] == pytest.approx(a * (2 / STD - 1))
    for keep_sign in (True, False):
        output = AepoAdvantage(AepoAdvantageConfig(entropy_weight=1.0, keep_sign=keep_sign))(batch())
        assert output.metrics == {"advantage/negative_factor_share": pytest.approx(1 / 6)}


def test_equal_entropies_and_a_single_token_change_nothing() -> None:
    plain = advantages(entropy_weight=0.0)
    assert advantages(dataclasses.replace(batch(), entropies=torch.full((4, 3), 0.3))) == plain
    one = torch.zeros(4, 3, dtype=torch.bool)
    one[3, 1] = True
    assert advantages(dataclasses.replace(batch(), mask=one))[3] == [0.0, pytest.approx(0.5**0.5), 0.0]


def test_equal_rewards_give_exactly_nothing() -> None:
    assert not any(map(any, advantages(batch((0.1, 0.1, 0.7, 0.7)))))


def test_token_rewards_count() -> None:
    extra = torch.zeros(4, 3)
    extra[1, 0] = 1.0
    inputs = dataclasses.replace(batch(), token_rewards=extra)
    assert [row[0] for row in advantages(inputs, entropy_weight=0.0, normalize_std=False)] == [0.0, 0.0, -1.5, 1.5]


def test_no_gradient_goes_through_the_entropies() -> None:
    inputs = dataclasses.replace(batch(), entropies=ENTROPIES.clone().requires_grad_())
    assert not AepoAdvantage(AepoAdvantageConfig())(inputs).advantages.requires_grad


def test_a_batch_without_entropies_is_an_error_and_not_silence() -> None:
    with pytest.raises(ConfigError) as caught:
        advantages(dataclasses.replace(batch(), entropies=None))
    assert str(caught.value) == "advantage: aepo needs the entropies of tokens, and the batch has none"


@pytest.mark.parametrize("config", [{}, {"entropy_weight": 3.0}, {"keep_sign": False, "normalize_std": False}])
def test_the_estimator_keeps_the_contract(config: dict[str, object]) -> None:
    check_advantage(AepoAdvantage(AepoAdvantageConfig(**config)))  # type: ignore[arg-type]


def test_eps_must_be_positive() -> None:
    [problem] = option_problems(AepoAdvantageConfig(eps=0.0))
    assert problem.startswith("eps ")
