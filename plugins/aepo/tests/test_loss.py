"""Entropy-balanced clipping: value and gradient by hand, against PPO, and at ratios that no float holds."""

from __future__ import annotations

import dataclasses
import math
import warnings

import pytest
import torch
from torch import Tensor

from ramet import ConfigError, LossInputs, LossOutput, Need, PolicyLoss
from ramet.plugins import load_plugins
from ramet.testing import check_policy_loss
from ramet.types.option import option_problems
from ramet_aepo.config import AepoLossConfig
from ramet_aepo.loss import AepoLoss


def batch(log_ratios: list[float], advantages: list[float], entropies: list[float] | None = None) -> LossInputs:
    """One sequence, in float64, so that finite differences can be taken."""
    logprobs = torch.tensor(log_ratios, dtype=torch.float64, requires_grad=True)
    zeros = torch.zeros(len(log_ratios))
    return LossInputs(
        logprobs=logprobs,
        old_logprobs=zeros.double(),
        engine_logprobs=zeros.double(),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        mask=torch.ones(len(log_ratios), dtype=torch.bool),
        sequence_ids=zeros.long(),
        rollout_ids=zeros.long(),
        group_ids=zeros.long(),
        turn_ids=zeros.long(),
        policy_versions=zeros.long(),
        entropies=None if entropies is None else torch.tensor(entropies),
    )


def gradient(output: LossOutput, inputs: LossInputs) -> Tensor:
    (found,) = torch.autograd.grad(output.per_token.sum(), [inputs.logprobs])
    return found


# ratio, advantage -> value, gradient by log pi, with a range of [0.8, 1.3] and a dual clip of 3
TABLE = [
    (0.5, 2.0, -1.0, -1.0),
    (1.2, 2.0, -2.4, -2.4),
    (2.0, 2.0, -2.6, -2.6),  # -A (1 + high), with the gradient of that; PPO: 0
    (50.0, 2.0, -2.6, -2.6),
    (0.5, -2.0, 1.6, 0.0),  # below the range
    (0.9, -2.0, 1.8, 1.8),
    (2.0, -2.0, 4.0, 4.0),  # above the range: unclipped, as in PPO
    (5.0, -2.0, 6.0, 0.0),  # dual clip
    (2.0, 0.0, 0.0, 0.0),
]


def test_value_and_gradient_by_hand() -> None:
    ratios, advantages, values, gradients = zip(*TABLE, strict=True)
    inputs = batch([math.log(ratio) for ratio in ratios], list(advantages))
    output = AepoLoss(AepoLossConfig(clip_high=0.3))(inputs)
    assert output.per_token.tolist() == pytest.approx(values)
    assert gradient(output, inputs).tolist() == pytest.approx(gradients)
    assert {name: metric.tolist() for name, metric in output.metrics.items() if "fraction" in name} == {
        "clip_fraction": [0, 0, 1, 1, 1, 0, 0, 0, 0],
        "clip_fraction_low": [0, 0, 0, 0, 0, 0, 0, 1, 0],
        "balanced_fraction": [0, 0, 1, 1, 0, 0, 0, 0, 0],
    }
    assert output.metrics["ratio"].tolist() == pytest.approx(ratios)
    assert output.metrics["approx_kl"].tolist() == pytest.approx([-math.log(ratio) for ratio in ratios])


def drawn() -> LossInputs:
    generator = torch.Generator().manual_seed(0)
    return batch(
        torch.randn(400, generator=generator).tolist(), torch.randn(400, generator=generator).tolist(), [1.0] * 400
    )


def ppo_clip(**options: object) -> PolicyLoss:
    """The core's."""
    entry = load_plugins().get("policy_losses", "ppo_clip")
    assert entry.config is not None
    return entry.build(entry.config(**options))


@pytest.mark.parametrize("dual_clip", [3.0, None])
def test_the_value_is_ppos_and_so_is_the_gradient_of_all_but_the_balanced_tokens(dual_clip: float | None) -> None:
    values = {"clip_low": 0.1, "clip_high": 0.3, "dual_clip": dual_clip}
    ours, theirs = drawn(), drawn()
    output, ppo = AepoLoss(AepoLossConfig(**values))(ours), ppo_clip(**values)(theirs)  # type: ignore[arg-type]
    assert torch.allclose(output.per_token, ppo.per_token)
    balanced = output.metrics["balanced_fraction"].bool()
    assert 10 < balanced.sum() < 200
    found, expected = gradient(output, ours), gradient(ppo, theirs)
    assert torch.allclose(found[~balanced], expected[~balanced])
    assert not expected[balanced].any()
    assert torch.allclose(found[balanced], -1.3 * ours.advantages[balanced])
    for name, metric in ppo.metrics.items():
        assert torch.allclose(output.metrics[name], metric), name


def test_where_the_value_is_smooth_the_gradient_is_that_of_finite_differences() -> None:
    inputs = drawn()
    output = AepoLoss(AepoLossConfig())(inputs)
    balanced = output.metrics["balanced_fraction"].bool()
    step = 1e-6

    def moved(by: float) -> Tensor:
        shifted = dataclasses.replace(inputs, logprobs=inputs.logprobs.detach() + by)
        return AepoLoss(AepoLossConfig())(shifted).per_token

    numeric = (moved(step) - moved(-step)) / (2 * step)
    assert torch.allclose(gradient(output, inputs)[~balanced], numeric[~balanced], atol=1e-6)
    assert not numeric[balanced].any()  # the value stays; only the gradient goes on


@pytest.mark.parametrize("log_ratio", [-1e30, -200.0, -88.0, 88.0, 200.0, 1e30])
@pytest.mark.parametrize("dual_clip", [3.0, None])
def test_nothing_is_infinite_at_any_ratio(log_ratio: float, dual_clip: float | None) -> None:
    single = batch([log_ratio] * 3, [1.0, -1.0, 0.0])
    inputs = dataclasses.replace(single, logprobs=single.logprobs.detach().float().requires_grad_())
    output = AepoLoss(AepoLossConfig(dual_clip=dual_clip))(inputs)
    found = gradient(output, inputs)
    assert output.per_token.isfinite().all() and found.isfinite().all()
    if log_ratio > 0:
        assert found[0].item() == pytest.approx(-1.2)


def test_only_tokens_above_an_entropy_are_balanced_if_it_is_given() -> None:
    inputs = batch([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [0.5, 1.0, 1.5])
    loss = AepoLoss(AepoLossConfig(entropy_above=1.0))
    output = loss(inputs)
    assert loss.needs == {Need.ENTROPY} and AepoLoss(AepoLossConfig()).needs == frozenset()
    assert output.per_token.tolist() == pytest.approx([-1.2, -1.2, -1.2])
    assert gradient(output, inputs).tolist() == pytest.approx([0.0, 0.0, -1.2])
    assert output.metrics["balanced_fraction"].tolist() == [0, 0, 1]


def test_a_batch_without_entropies_is_an_error_and_not_silence() -> None:
    with pytest.raises(ConfigError) as caught:
        AepoLoss(AepoLossConfig(entropy_above=1.0))(batch([1.0], [1.0]))
    assert str(caught.value) == "policy_loss.params.entropy_above needs the entropies of tokens, and the batch has none"


@pytest.mark.parametrize("config", [{}, {"entropy_above": 0.4}, {"dual_clip": None, "clip_high": 0.28}])
def test_the_loss_keeps_the_contract(config: dict[str, float | None]) -> None:
    with warnings.catch_warnings(action="error"):  # of waits for the device
        check_policy_loss(AepoLoss(AepoLossConfig(**config)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"), [("clip_low", 1.0), ("clip_high", -0.1), ("dual_clip", 1.0), ("entropy_above", -1.0)]
)
def test_options_that_cannot_be_are_refused(name: str, value: float) -> None:
    [problem] = option_problems(AepoLossConfig(**{name: value}))  # type: ignore[arg-type]
    assert problem.startswith(f"{name} ") and problem.endswith(f" {value}")
