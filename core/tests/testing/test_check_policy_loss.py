"""The check of policy losses passes good ones and names what is wrong with each broken one."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from torch import Tensor

from ramet import LossInputs, LossOutput, Need
from ramet.testing import check_policy_loss


def clipped(batch: LossInputs) -> Tensor:
    ratio = torch.exp(batch.logprobs - batch.old_logprobs)
    return -torch.minimum(ratio * batch.advantages, ratio.clamp(0.8, 1.2) * batch.advantages)


class Clip:
    needs: frozenset[Need] = frozenset()
    reads_ratio = True

    def __call__(self, batch: LossInputs) -> LossOutput:
        hit = ((batch.logprobs - batch.old_logprobs).abs() > 0.2).float()
        return LossOutput(per_token=clipped(batch), metrics={"clip_fraction": hit.detach()})


class SequenceLevel(Clip):
    """One ratio per sequence (as in GSPO): sums within a sequence are allowed."""

    def __call__(self, batch: LossInputs) -> LossOutput:
        n = int(batch.sequence_ids.max()) + 1
        masked = torch.where(batch.mask, batch.logprobs - batch.old_logprobs, 0.0)
        count = torch.zeros(n).index_add(0, batch.sequence_ids, batch.mask.float())
        mean = torch.zeros(n).index_add(0, batch.sequence_ids, masked) / count
        return LossOutput(per_token=-torch.exp(mean)[batch.sequence_ids] * batch.advantages)


class WithReference(Clip):
    needs = frozenset({Need.REFERENCE, Need.ENTROPY})

    def __call__(self, batch: LossInputs) -> LossOutput:
        assert batch.ref_logprobs is not None and batch.entropies is not None
        kl = (batch.logprobs - batch.ref_logprobs) ** 2 / 2
        return LossOutput(per_token=clipped(batch) + 0.1 * kl - 0.01 * batch.entropies)


class LocalMean(Clip):
    """The classic: normalised by the tokens of the micro-batch."""

    def __call__(self, batch: LossInputs) -> LossOutput:
        return LossOutput(per_token=clipped(batch) / batch.mask.sum())


class Whitened(Clip):
    def __call__(self, batch: LossInputs) -> LossOutput:
        return LossOutput(per_token=clipped(batch) * (batch.advantages - batch.advantages[batch.mask].mean()))


class GradientOnly(Clip):
    """The value does not depend on others; only the gradient depends on the micro-batch."""

    def __call__(self, batch: LossInputs) -> LossOutput:
        anchor = batch.logprobs - batch.logprobs.detach()
        return LossOutput(per_token=clipped(batch) + anchor / len(anchor))


class TrainsMasked(Clip):
    """Its sequence mean takes tool results in."""

    def __call__(self, batch: LossInputs) -> LossOutput:
        n = int(batch.sequence_ids.max()) + 1
        total = torch.zeros(n).index_add(0, batch.sequence_ids, batch.logprobs)
        return LossOutput(per_token=-total[batch.sequence_ids] * batch.advantages)


class ReadsMasked(Clip):
    def __call__(self, batch: LossInputs) -> LossOutput:
        n = int(batch.sequence_ids.max()) + 1
        weight = torch.zeros(n).index_add(0, batch.sequence_ids, batch.engine_logprobs)
        return LossOutput(per_token=clipped(batch) * weight[batch.sequence_ids])


class AttachedMetric(Clip):
    def __call__(self, batch: LossInputs) -> LossOutput:
        return LossOutput(per_token=clipped(batch), metrics={"ratio": batch.logprobs - batch.old_logprobs})


class ScalarMetric(Clip):
    def __call__(self, batch: LossInputs) -> LossOutput:
        return LossOutput(per_token=clipped(batch), metrics={"ratio": torch.ones(())})


class Infinite(Clip):
    def __call__(self, batch: LossInputs) -> LossOutput:
        return LossOutput(per_token=clipped(batch) + torch.log(batch.advantages * 0))


class InfiniteGradient(Clip):
    def __call__(self, batch: LossInputs) -> LossOutput:
        return LossOutput(per_token=clipped(batch) + torch.sqrt(batch.logprobs - batch.logprobs.detach()))


class Scalar(Clip):
    def __call__(self, batch: LossInputs) -> LossOutput:
        return LossOutput(per_token=clipped(batch).mean())


class Detached(Clip):
    def __call__(self, batch: LossInputs) -> LossOutput:
        return LossOutput(per_token=clipped(batch).detach())


class Inert(Clip):
    def __call__(self, batch: LossInputs) -> LossOutput:
        return LossOutput(per_token=clipped(batch) * 0)


class Undeclared(Clip):
    def __call__(self, batch: LossInputs) -> LossOutput:
        return LossOutput(per_token=batch.logprobs - batch.ref_logprobs)


class UndeclaredRatio(Clip):
    reads_ratio = False


class InPlace(Clip):
    def __call__(self, batch: LossInputs) -> LossOutput:
        batch.advantages.mul_(2)
        return LossOutput(per_token=clipped(batch))


class TokenMean(Clip):
    aggregation = frozenset({"token-mean"})


class UnknownAggregation(Clip):
    aggregation = frozenset({"token-mean", "mean"})


class NoAggregation(Clip):
    aggregation: frozenset[str] = frozenset()


@pytest.mark.parametrize("good", [TokenMean, Clip, SequenceLevel, WithReference])
def test_a_good_loss_passes(good: type) -> None:
    check_policy_loss(good())


def test_a_loss_that_waits_for_the_gpu_is_warned_of_with_its_line() -> None:
    with pytest.warns(UserWarning, match="SequenceLevel waits for the GPU") as caught:
        check_policy_loss(SequenceLevel())
    [warning] = caught
    line = inspect.getsourcelines(SequenceLevel)[1] + 4  # int(…)
    assert f"aten._local_scalar_dense.default at {__file__}:{line};" in str(warning.message)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            UnknownAggregation,
            "aggregation is frozenset.*: set it to a frozenset of these, or leave it out: token-mean, ",
        ),
        (NoAggregation, r"aggregation is frozenset\(\): "),
        (LocalMean, "depends on the other sequences"),
        (Whitened, "depends on the other sequences"),
        (GradientOnly, "depends on the other sequences"),
        (TrainsMasked, "masked tokens get a gradient"),
        (ReadsMasked, "values of masked tokens"),
        (AttachedMetric, "'ratio' is attached"),
        (ScalarMetric, r"'ratio' has shape \[\]"),
        (Infinite, "loss is not finite"),
        (InfiniteGradient, "gradient is not finite"),
        (Scalar, r"per_token has shape \[\]"),
        (Detached, "carries no gradient"),
        (Inert, "get no gradient"),
        (Undeclared, "`needs` does not name them.*ref_logprobs"),
        (UndeclaredRatio, "old_logprobs change the loss: set reads_ratio = True"),
        (InPlace, "changed the input advantages"),
    ],
)
def test_a_broken_loss_is_caught(broken: type, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_policy_loss(broken())
    assert re.search(message, str(caught.value))
