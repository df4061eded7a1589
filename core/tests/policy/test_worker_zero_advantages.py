"""Rows whose advantages are all 0 are counted in every denominator and not computed, and the update is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.config.schema import LossAggregation
from ramet.policy.batching.packing import MicroBatch
from ramet.policy.batching.rows import Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import PolicySpec
from ramet.types import LossInputs, LossOutput, Need

MakeSpec = Callable[..., PolicySpec]
MakeRows = Callable[..., list[Row]]
ZERO = (1, 2, 5)


class ComputesEveryRow(PpoClip):
    """The same loss, which declares that it might use entropies: then every row is computed."""

    needs = frozenset({Need.ENTROPY})


class Pulls(PpoClip):
    """Has a loss without advantages too, and says so."""

    zero_without_advantage = False

    def __call__(self, batch: LossInputs) -> LossOutput:
        return LossOutput(per_token=super().__call__(batch).per_token - 0.1 * batch.logprobs)


@pytest.fixture
def some_zero_advantages(make_advantages: Callable[[list[Row]], Tensor]) -> Callable[..., Tensor]:
    def build(rows: list[Row], zero: tuple[int, ...] = ZERO) -> Tensor:
        advantages = make_advantages(rows)
        advantages[list(zero)] = 0.0
        return advantages

    return build


def parameters(worker: PolicyRank) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in worker.model.parameters()])


def updated(spec: PolicySpec, rows: list[Row], *advantages: Tensor) -> tuple[Tensor, dict[str, float], set[int]]:
    """Weights after these steps, the last metrics, and the lengths of responses that were computed with a gradient."""
    worker = PolicyRank(spec)
    compute, seen = worker.policy.module.forward, set[int]()

    def recording(batch: MicroBatch, *options: Any) -> Any:
        if torch.is_grad_enabled():
            seen.update(batch.lengths)
        return compute(batch, *options)

    worker.policy.module.forward = recording  # type: ignore[method-assign]
    metrics: dict[str, float] = {}
    for step, given in enumerate(advantages, start=1):
        metrics = worker.update(TrainBatch(rows=rows).with_advantages(given), step)
    return parameters(worker), metrics, seen


@pytest.mark.parametrize("mode", LossAggregation)
@pytest.mark.parametrize("options", [{}, {"minibatches": 3, "epochs": 2}], ids=["one step", "minibatches"])
def test_the_update_is_the_same_to_the_bit_with_and_without_rows_that_have_no_advantage(
    make_spec: MakeSpec,
    make_rows: MakeRows,
    some_zero_advantages: Callable[..., Tensor],
    mode: LossAggregation,
    options: dict[str, int],
) -> None:
    """A sequence a pass, so that the same sums are made; the second step shows the optimiser's state."""
    rows = make_rows(7)
    advantages = some_zero_advantages(rows)
    results = []
    for loss in (PpoClip(PpoClipConfig()), ComputesEveryRow(PpoClipConfig())):
        spec = make_spec(policy_loss=loss, loss_aggregation=mode, max_microbatch_tokens=1, **options)
        results.append(updated(spec, rows, advantages, advantages))
    (skipped, metrics, seen), (whole, expected, _) = results
    assert torch.equal(skipped, whole)
    assert metrics["train/rows_without_signal"] == expected["train/rows_without_signal"] == len(ZERO)
    for name in ("train/loss", "train/grad_norm", "train/tokens", "train/optimizer_steps"):
        assert metrics[name] == expected[name]
    assert seen == {len(row.response_ids) for i, row in enumerate(rows) if i not in ZERO}


@pytest.mark.parametrize("packed", [False, True])
def test_packing_does_not_change_the_update(
    make_spec: MakeSpec, make_rows: MakeRows, some_zero_advantages: Callable[..., Tensor], packed: bool
) -> None:
    rows = make_rows(7)
    weights = []
    for loss in (PpoClip(PpoClipConfig()), ComputesEveryRow(PpoClipConfig())):
        worker = PolicyRank(make_spec(policy_loss=loss, minibatches=2))
        if packed:
            worker.policy._cost = None
        worker.update(TrainBatch(rows=rows).with_advantages(some_zero_advantages(rows)), 1)
        weights.append(parameters(worker))
    torch.testing.assert_close(*weights, rtol=0, atol=2e-5)


@pytest.mark.parametrize("minibatches", [1, 3])
def test_a_step_without_any_signal_changes_nothing_though_the_optimiser_has_momentum(
    make_spec: MakeSpec, make_rows: MakeRows, some_zero_advantages: Callable[..., Tensor], minibatches: int
) -> None:
    rows = make_rows(7)
    first, nothing = some_zero_advantages(rows), torch.zeros(7, max(len(row.response_ids) for row in rows))
    results = []
    for loss in (PpoClip(PpoClipConfig()), ComputesEveryRow(PpoClipConfig())):
        spec = make_spec(policy_loss=loss, max_microbatch_tokens=1, weight_decay=0.1, minibatches=minibatches)
        results.append(updated(spec, rows, first, nothing))
    (skipped, metrics, _), (whole, expected, _) = results
    before, _, _ = updated(make_spec(max_microbatch_tokens=1, weight_decay=0.1, minibatches=minibatches), rows, first)
    assert torch.equal(skipped, before) and torch.equal(whole, before)
    assert metrics["train/rows_without_signal"] == 7
    assert metrics["train/loss"] == expected["train/loss"] == metrics["train/grad_norm"] == 0
    assert metrics["train/optimizer_steps"] == 0


@pytest.mark.parametrize(
    "options",
    [{"kl_coef": 0.1}, {"entropy_coef": 0.01}, {"policy_loss": Pulls(PpoClipConfig())}],
    ids=["kl", "entropy", "a loss of its own"],
)
def test_rows_are_computed_where_anything_else_than_the_advantage_trains_them(
    make_spec: MakeSpec, make_rows: MakeRows, some_zero_advantages: Callable[..., Tensor], options: dict[str, Any]
) -> None:
    rows = make_rows(7)
    _, metrics, seen = updated(make_spec(**options), rows, some_zero_advantages(rows))
    assert seen == {len(row.response_ids) for row in rows}
    assert metrics["train/rows_without_signal"] == len(ZERO)
    assert metrics["train/loss"] != 0
