"""The check of advantage estimators passes a good one and names what is wrong with each broken one."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from ramet import AdvantageInputs, AdvantageOutput, Need, StopReason
from ramet.testing import check_advantage


def group_mean(batch: AdvantageInputs) -> Tensor:
    _, group = batch.group_ids.unique(return_inverse=True)
    total = torch.zeros(int(group.max()) + 1).index_add(0, group, batch.rewards)
    return batch.rewards - (total / torch.bincount(group))[group]


class GroupMean:
    needs: frozenset[Need] = frozenset()

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return AdvantageOutput(advantages=group_mean(batch)[:, None] * batch.mask, metrics={"mean": 0.0})


class WithEntropy(GroupMean):
    """Uses everything that it names, rows of parents included."""

    needs = frozenset({Need.ENTROPY})

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        assert batch.entropies is not None
        own = torch.where(batch.parent >= 0, batch.rewards[batch.parent.clamp(min=0)], batch.rewards)
        shaped = (group_mean(batch) + own)[:, None] * (1 + batch.entropies)
        return AdvantageOutput(advantages=torch.where(batch.mask, shaped, 0.0))


class Outside(GroupMean):
    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return AdvantageOutput(advantages=group_mean(batch)[:, None].expand(batch.mask.shape))


class WrongShape(GroupMean):
    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return AdvantageOutput(advantages=group_mean(batch))


class Attached(GroupMean):
    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        weight = torch.ones((), requires_grad=True)
        return AdvantageOutput(advantages=weight * group_mean(batch)[:, None] * batch.mask)


class ByPosition(GroupMean):
    """Takes neighbouring rows for a group."""

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        baseline = torch.roll(batch.rewards, 1)
        return AdvantageOutput(advantages=(batch.rewards - baseline)[:, None] * batch.mask)


class ByGroupNumber(GroupMean):
    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return AdvantageOutput(advantages=(group_mean(batch) + batch.group_ids)[:, None] * batch.mask)


class ByNodeNumber(GroupMean):
    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return AdvantageOutput(advantages=batch.node_ids.float() * batch.mask)


class ByGroup(WithEntropy):
    scope = "group"


class OverAllGroups(GroupMean):
    """Relative to the mean of the step."""

    scope = "group"

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return AdvantageOutput(advantages=(batch.rewards - batch.rewards.mean())[:, None] * batch.mask)


class OtherScope(GroupMean):
    scope = "task"


class WithoutTurnRewards(GroupMean):
    """Takes the NaN of turns that gave nothing for a reward."""

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        if batch.turn_rewards is None:
            return super().__call__(batch)
        return AdvantageOutput(advantages=batch.turn_rewards.sum(1)[:, None] * batch.mask)


class PrefixMean(GroupMean):
    """Shared tokens get the mean advantage of all who share them; length and calls are priced."""

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        price = torch.tensor([float(reason is StopReason.LENGTH) for reason in batch.stop]) + batch.n_tool_calls
        own = (group_mean(batch) - 0.1 * price)[:, None].expand(batch.mask.shape)
        names, node = batch.node_ids.unique(return_inverse=True)
        total = torch.zeros(len(names)).index_add(0, node.flatten(), own.flatten())
        shared = (total / node.flatten().bincount())[node]
        return AdvantageOutput(advantages=torch.where(batch.mask, shared, 0.0))


class Undeclared(GroupMean):
    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return AdvantageOutput(advantages=batch.entropies * batch.mask)


class ReadsMasked(GroupMean):
    needs = frozenset({Need.OLD_LOGPROBS})

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        assert batch.old_logprobs is not None
        mean = batch.old_logprobs.sum(1) / batch.mask.sum(1)
        return AdvantageOutput(advantages=mean[:, None] * batch.mask)


class CountsPadding(GroupMean):
    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return AdvantageOutput(advantages=group_mean(batch)[:, None] * batch.mask / batch.mask.shape[1])


class DividesByZero(GroupMean):
    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        scaled = group_mean(batch) / batch.rewards.std()
        return AdvantageOutput(advantages=torch.where(batch.mask, scaled[:, None], 0.0))


class InPlace(GroupMean):
    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        batch.rewards.sub_(batch.rewards.mean())
        return super().__call__(batch)


class TensorMetric(GroupMean):
    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return AdvantageOutput(advantages=group_mean(batch)[:, None] * batch.mask, metrics={"m": torch.ones(())})


class NoNeeds:
    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return GroupMean()(batch)


class BareTensor(GroupMean):
    def __call__(self, batch: AdvantageInputs) -> Tensor:
        return group_mean(batch)[:, None] * batch.mask


@pytest.mark.parametrize("good", [GroupMean, WithEntropy, PrefixMean, ByGroup])
def test_a_good_estimator_passes(good: type) -> None:
    check_advantage(good())


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Outside, "not zero outside the mask"),
        (WrongShape, r"shape \[11\]: return \[N, T\]"),
        (Attached, "carries a gradient"),
        (ByPosition, "the rows' order"),
        (ByGroupNumber, "the numbers in group_ids"),
        (ByNodeNumber, "the numbers in node_ids"),
        (OverAllGroups, 'scope is "group", and the other groups change the advantages'),
        (OtherScope, "scope is 'task'"),
        (WithoutTurnRewards, "advantages is not finite"),
        (Undeclared, "`needs` does not name them.*entropies"),
        (ReadsMasked, "outside the mask change"),
        (CountsPadding, "more padding"),
        (DividesByZero, "not finite"),
        (InPlace, "changed the input rewards"),
        (TensorMetric, "metric 'm'"),
        (NoNeeds, "needs is None"),
        (BareTensor, "return an AdvantageOutput"),
    ],
)
def test_a_broken_estimator_is_caught(broken: type, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_advantage(broken())
    assert re.search(message, str(caught.value))
