"""Check of policy losses (hook 4).

The core aggregates with global counts, so a token's loss must not depend on other sequences.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from ramet.config.schema import LossAggregation
from ramet.plugins.output_checks import absent_hint, loss_problem
from ramet.testing.batches import tiny_loss_batch
from ramet.testing.checked import checked, crash
from ramet.testing.device_waits import device_waits
from ramet.testing.expect import expect, expect_needs, expect_none
from ramet.types import LossInputs, LossOutput, PolicyLoss

POISON = 3.0


@checked()
def check_policy_loss(loss: PolicyLoss) -> None:
    """Raise `AssertionError` unless the loss keeps the contract.

    Shape, finite, detached metrics, a gradient to `logprobs`. The same loss and gradient of every token however the
    sequences are cut into micro-batches. No gradient to masked tokens, and no effect of their values. Inputs that
    `needs` does not name are absent. `aggregation` names known modes. A loss that `old_logprobs` change sets
    `reads_ratio`. A loss with `zero_without_advantage` is 0 then. The batch stays unchanged.

    Warns of a loss for which the host waits for the GPU in every micro-batch.
    """
    needs = expect_needs(loss)
    _check_aggregation(getattr(loss, "aggregation", None))
    for seed in (0, 1):
        batch = tiny_loss_batch(seed, needs)
        whole = _run(loss, batch)
        _check_micro_batches(loss, batch, whole)
        _check_mask(loss, batch, whole)
        _check_ratio(loss, batch, whole)
        _check_without_advantage(loss, batch)
    expect(bool(whole.gradient[batch.mask].any()), "logprobs get no gradient: compute the loss from batch.logprobs")
    _warn_of_waits(loss, batch)


def _warn_of_waits(loss: PolicyLoss, batch: LossInputs) -> None:
    with device_waits() as waits:
        loss(_fresh(batch))
    if waits:
        warnings.warn(
            f"{type(loss).__name__} waits for the GPU in every micro-batch: {', '.join(dict.fromkeys(waits))}; write "
            "torch.where(mask, values, 0.0) instead of values[mask], and keep numbers in tensors instead of float() "
            "or .item()",
            stacklevel=2,
        )


def _check_aggregation(allowed: object) -> None:
    modes = [mode.value for mode in LossAggregation]
    expect(
        allowed is None or (isinstance(allowed, frozenset) and bool(allowed) and allowed <= set(modes)),
        f"aggregation is {allowed!r}: set it to a frozenset of these, or leave it out: {', '.join(modes)}",
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """Return, of one call, the loss per token and its gradient with respect to `logprobs`, both [T]."""

    per_token: Tensor
    gradient: Tensor


def _run(loss: PolicyLoss, batch: LossInputs) -> _Run:
    batch = _fresh(batch)
    before = {name: value.detach().clone() for name, value in _tensors(batch).items()}
    try:
        output = loss(batch)
    except Exception as error:
        raise AssertionError(f"{crash(error)}{absent_hint(error, batch)}") from error
    for name, value in _tensors(batch).items():
        expect(torch.equal(value.detach(), before[name]), f"changed the input {name} in place: work on a copy")
    _check_output(output, batch)
    # What the core sums: masked tokens only, whatever the others are.
    total = torch.where(batch.mask, output.per_token, 0.0).sum()
    (gradient,) = torch.autograd.grad(total, [batch.logprobs], allow_unused=True)
    gradient = torch.zeros_like(batch.logprobs) if gradient is None else gradient
    expect(bool(gradient[batch.mask].isfinite().all()), "the gradient is not finite: clamp before exp and log")
    return _Run(output.per_token.detach(), gradient)


def _check_output(output: LossOutput, batch: LossInputs) -> None:
    expect_none(loss_problem(output, batch))
    finite = output.per_token[batch.mask].isfinite().all()
    expect(bool(finite), "the loss is not finite: clamp before exp and log")
    for name, metric in output.metrics.items():
        expect(bool(metric[batch.mask].isfinite().all()), f"metric {name!r} is not finite")


def _check_mask(loss: PolicyLoss, batch: LossInputs, whole: _Run) -> None:
    expect(
        bool((whole.gradient[~batch.mask] == 0).all()),
        "masked tokens get a gradient: leave them out of sums and means over a sequence",
    )
    poisoned: dict[str, Tensor] = {}
    for name, value in _tensors(batch).items():
        if value.is_floating_point():
            poisoned[name] = torch.where(batch.mask, value.detach(), POISON)
    other = _run(loss, replace(batch, **poisoned))
    expect(
        _same(other, whole, batch.mask),
        "values of masked tokens change the loss of others: apply the mask before sums and means over a sequence",
    )


def _check_micro_batches(loss: PolicyLoss, batch: LossInputs, whole: _Run) -> None:
    n = int(batch.sequence_ids.max()) + 1
    alone = [[i] for i in range(n)]
    for part in [*alone, list(range(n // 2)), list(range(n - 1, n // 2 - 1, -1))]:
        index = torch.cat([(batch.sequence_ids == i).nonzero().squeeze(1) for i in part])
        part_run = _run(loss, _selected(batch, index))
        expected = _Run(whole.per_token[index], whole.gradient[index])
        expect(
            _same(part_run, expected, batch.mask[index]),
            "a token's loss or gradient depends on the other sequences of its micro-batch: no means, counts or "
            "statistics over the batch; the core normalises by global counts",
        )


def _check_without_advantage(loss: PolicyLoss, batch: LossInputs) -> None:
    if getattr(loss, "zero_without_advantage", False):
        none = _run(loss, replace(batch, advantages=torch.zeros_like(batch.advantages)))
        expect(
            not none.per_token[batch.mask].any() and not none.gradient[batch.mask].any(),
            "says zero_without_advantage, but has a loss or a gradient where advantages are 0: set it to False, or "
            "sequences without advantages are not computed",
        )


def _check_ratio(loss: PolicyLoss, batch: LossInputs, whole: _Run) -> None:
    moved = _run(loss, replace(batch, old_logprobs=batch.old_logprobs - 0.5))
    expect(
        getattr(loss, "reads_ratio", False) is True or _same(moved, whole, batch.mask),
        "old_logprobs change the loss: set reads_ratio = True, so that a run is warned of where they are logprobs",
    )


def _same(first: _Run, other: _Run, mask: Tensor) -> bool:
    return torch.allclose(first.per_token[mask], other.per_token[mask], atol=1e-5) and torch.allclose(
        first.gradient[mask], other.gradient[mask], atol=1e-5
    )


def _tensors(batch: LossInputs) -> dict[str, Tensor]:
    named: dict[str, Any] = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return {name: value for name, value in named.items() if value is not None}


def _fresh(batch: LossInputs) -> LossInputs:
    """Copy the batch with separate leaves, so that runs do not share gradients."""
    leaves = {name: getattr(batch, name) for name in ("logprobs", "entropies")}
    return replace(
        batch, **{name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items() if leaf is not None}
    )


def _selected(batch: LossInputs, index: Tensor) -> LossInputs:
    """The micro-batch of these positions, its sequences numbered from 0 in their new order."""
    selected = {name: value.detach()[index] for name, value in _tensors(batch).items()}
    ids = selected["sequence_ids"]
    starts = torch.ones(len(ids), dtype=torch.int64)
    starts[1:] = (ids[1:] != ids[:-1]).long()
    return replace(batch, **{**selected, "sequence_ids": torch.cumsum(starts, 0) - 1})
