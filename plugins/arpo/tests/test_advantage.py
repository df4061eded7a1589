"""Attribution of advantages to shared tokens, by hand: one parent, one fork of it, and an unrelated rollout."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from ramet import AdvantageInputs, StopReason
from ramet.testing import check_advantage
from ramet.types.option import option_problems
from ramet_arpo.advantage import ArpoAdvantage
from ramet_arpo.config import ArpoAdvantageConfig, Attribution, Multiplicity

MASK = torch.tensor([[1, 1, 0, 1], [1, 1, 0, 1], [1, 1, 1, 0]], dtype=torch.bool)
NODES = torch.tensor(
    [[0, 1, 2, 3], [0, 1, 2, 4], [5, 6, 7, -1]]
)  # rows 0 and 1 share three tokens, one of them inserted


def batch(rewards: tuple[float, ...] = (1.0, 0.0, 0.5)) -> AdvantageInputs:
    zeros = torch.zeros(3, 4)
    return AdvantageInputs(
        rewards=torch.tensor(rewards),
        reward_parts={},
        mask=MASK,
        group_ids=torch.zeros(3, dtype=torch.int64),
        turn_ids=torch.zeros(3, 4, dtype=torch.int64),
        thread_ids=torch.zeros(3, 4, dtype=torch.int64),
        node_ids=NODES,
        parent=torch.tensor([-1, 0, -1]),
        fork_position=torch.tensor([0, 3, 0]),
        stop=[StopReason.ANSWER] * 3,
        n_tool_calls=torch.zeros(3, dtype=torch.int64),
        engine_logprobs=zeros,
        policy_versions=torch.zeros(3, 4, dtype=torch.int64),
    )


def advantages(**config: object) -> Tensor:
    """Rewards 1, 0 and 0.5 have mean 0.5 and standard deviation 0.5: A = 1, -1, 0."""
    return ArpoAdvantage(ArpoAdvantageConfig(eps=1e-12, **config))(batch()).advantages  # type: ignore[arg-type]


def test_soft_is_grpo_on_the_flattened_rollouts() -> None:
    assert advantages().tolist() == [[1, 1, 0, 1], [-1, -1, 0, -1], [0, 0, 0, 0]]


def test_hard_gives_shared_tokens_the_mean_of_their_rollouts() -> None:
    assert advantages(attribution=Attribution.HARD).tolist() == [[0, 0, 0, 1], [0, 0, 0, -1], [0, 0, 0, 0]]


def test_own_trains_a_fork_from_its_fork_point_on() -> None:
    """The fork's advantage is -1, and its two copies of the root's tokens are not trained."""
    out = ArpoAdvantage(ArpoAdvantageConfig(attribution=Attribution.OWN, eps=1e-12))(batch())
    assert out.weights is not None
    assert (out.weights * out.advantages).tolist() == [[1, 1, 0, 1], [0, 0, 0, -1], [0, 0, 0, 0]]
    assert (out.weights * MASK).sum().item() == 7  # tokens of the group, each once


def test_own_counts_a_token_once_already() -> None:
    with pytest.raises(ValueError, match="multiplicity=one: with attribution=own"):
        ArpoAdvantageConfig(attribution=Attribution.OWN, multiplicity=Multiplicity.ONE)


@pytest.mark.parametrize(("multiplicity", "weight"), [(Multiplicity.ONE, 0.5), (Multiplicity.SQRT, 2**-0.5)])
def test_multiplicity_weighs_shared_tokens_down(multiplicity: Multiplicity, weight: float) -> None:
    out = ArpoAdvantage(ArpoAdvantageConfig(multiplicity=multiplicity))(batch())
    expected = torch.tensor([[weight, weight, 1], [weight, weight, 1], [1, 1, 1]])
    assert out.weights is not None and torch.allclose(out.weights[MASK].view(3, 3), expected)
    assert torch.equal(out.advantages, ArpoAdvantage(ArpoAdvantageConfig())(batch()).advantages)
    assert ArpoAdvantage(ArpoAdvantageConfig())(batch()).weights is None


def test_without_the_standard_deviation_the_reward_is_only_centred() -> None:
    assert advantages(normalize_std=False)[:, 0].tolist() == [0.5, -0.5, 0.0]


def test_the_share_of_shared_tokens_is_reported() -> None:
    assert ArpoAdvantage(ArpoAdvantageConfig())(batch()).metrics == {
        "advantage/shared_token_share": pytest.approx(4 / 9)
    }


def test_soft_and_hard_have_the_same_gradient_in_a_token_mean_loss() -> None:
    """The sum over the copies of each token is what a token-mean loss sees."""
    for attribution in (Attribution.SOFT, Attribution.HARD):
        total = torch.zeros(8).index_add(0, NODES[MASK], advantages(attribution=attribution)[MASK])
        assert total.tolist() == pytest.approx([0, 0, 0, 1, -1, 0, 0, 0])


def test_equal_rewards_give_exactly_nothing() -> None:
    for attribution in Attribution:
        estimator = ArpoAdvantage(ArpoAdvantageConfig(attribution=attribution))
        assert not estimator(batch((0.1, 0.1, 0.1))).advantages.any()


def test_token_rewards_count() -> None:
    extra = torch.zeros(3, 4)
    extra[1, 3] = 1.0
    out = ArpoAdvantage(ArpoAdvantageConfig(normalize_std=False))(dataclasses.replace(batch(), token_rewards=extra))
    assert out.advantages[:, 0].tolist() == pytest.approx([1 / 6, 1 / 6, -1 / 3])


@pytest.mark.parametrize("attribution", list(Attribution))
def test_the_estimator_keeps_the_contract(attribution: Attribution) -> None:
    check_advantage(ArpoAdvantage(ArpoAdvantageConfig(attribution=attribution)))


def test_eps_must_be_positive() -> None:
    [problem] = option_problems(ArpoAdvantageConfig(eps=0.0))
    assert problem.startswith("eps ")
