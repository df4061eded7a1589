"""Check of advantage estimators (hook 3)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from ramet.plugins.output_checks import absent_hint, advantage_problem
from ramet.testing.batches import tiny_batch
from ramet.testing.checked import checked, crash
from ramet.testing.expect import expect, expect_needs, expect_none
from ramet.types import AdvantageEstimator, AdvantageInputs, AdvantageOutput
from ramet.types.algorithm import SCOPES

POISON = 7.0


@checked()
def check_advantage(estimator: AdvantageEstimator) -> None:
    """Raise `AssertionError` unless the estimator keeps the contract.

    Shape, type, no gradient, finite, zero outside the mask, also where all rewards are equal. The same numbers whatever
    the order of the rows, the numbers of groups, nodes and states, the padding and the values outside the mask. With
    `scope="group"` the same numbers without the other groups, too. Inputs that `needs` does not name are absent. The
    batch stays unchanged. Once without token rewards, turn rewards and states, once with them.
    """
    needs = expect_needs(estimator)
    for seed, extra in ((0, False), (1, True)):
        batch = tiny_batch(seed, needs, extra=extra)
        output = _call(estimator, batch)
        _check_output(output, batch)
        _check_invariance(estimator, batch, output.advantages)
        _check_scope(estimator, batch, output)
    flat = replace(tiny_batch(0, needs), rewards=torch.ones(len(batch.rewards)))
    _check_output(_call(estimator, flat), flat)


def _call(estimator: AdvantageEstimator, batch: AdvantageInputs) -> AdvantageOutput:
    before = {name: value.clone() for name, value in _tensors(batch).items()}
    try:
        output = estimator(batch)
    except Exception as error:
        raise AssertionError(f"{crash(error)}{absent_hint(error, batch)}") from error
    for name, value in _tensors(batch).items():
        same = torch.equal(value.nan_to_num(), before[name].nan_to_num())
        expect(same, f"changed the input {name} in place: work on a copy")
    return output


def _check_output(output: AdvantageOutput, batch: AdvantageInputs) -> None:
    expect_none(advantage_problem(output, batch))


def _check_invariance(estimator: AdvantageEstimator, batch: AdvantageInputs, advantages: Tensor) -> None:
    order = torch.randperm(len(batch.rewards), generator=torch.Generator().manual_seed(0))
    permuted = _call(estimator, _rows_of(batch, order)).advantages
    expect(
        torch.allclose(permuted, advantages[order], atol=1e-5),
        "the rows' order changes the advantages: use group_ids and parent, never a row's position",
    )
    renamed = replace(batch, group_ids=(batch.group_ids + 1) * 17)
    expect(
        torch.allclose(_call(estimator, renamed).advantages, advantages, atol=1e-5),
        "the numbers in group_ids change the advantages: they are names (see torch.unique)",
    )
    nodes = torch.where(batch.node_ids >= 0, (batch.node_ids + 1) * 17, -1)
    expect(
        torch.allclose(_call(estimator, replace(batch, node_ids=nodes)).advantages, advantages, atol=1e-5),
        "the numbers in node_ids change the advantages: they are names (see torch.unique)",
    )
    if batch.state_ids is not None:
        states = torch.where(batch.state_ids >= 0, (batch.state_ids + 1) * 17, -1)
        expect(
            torch.allclose(_call(estimator, replace(batch, state_ids=states)).advantages, advantages, atol=1e-5),
            "the numbers in state_ids change the advantages: they are names (see torch.unique)",
        )
    expect(
        torch.allclose(_call(estimator, _poisoned(batch)).advantages, advantages, atol=1e-5),
        "values outside the mask change the advantages: mask every [N, T] input before it is summed or averaged",
    )
    padded = _call(estimator, _padded(batch)).advantages[:, : advantages.shape[1]]
    expect(
        torch.allclose(padded, advantages, atol=1e-5),
        "more padding changes the advantages: count masked tokens instead of T",
    )


def _check_scope(estimator: AdvantageEstimator, batch: AdvantageInputs, output: AdvantageOutput) -> None:
    scope = getattr(estimator, "scope", "batch")
    expect(scope in SCOPES, f"scope is {scope!r}: {' or '.join(map(repr, SCOPES))}")
    if scope == "batch":
        return
    for group in torch.unique(batch.group_ids):
        rows = (batch.group_ids == group).nonzero().squeeze(1)
        own = _call(estimator, _rows_of(batch, rows))
        for name in ("advantages", "returns", "weights"):
            given, whole = getattr(own, name), getattr(output, name)
            expect((given is None) == (whole is None), f"gives {name} for some groups only")
            expect(
                given is None or torch.allclose(given, whole[rows], atol=1e-5),
                f'scope is "group", and the other groups change the {name}: leave scope out',
            )


def _tensors(batch: AdvantageInputs) -> dict[str, Tensor]:
    named: dict[str, Any] = {f.name: getattr(batch, f.name) for f in fields(batch)}
    named |= {f"reward_parts[{name!r}]": part for name, part in batch.reward_parts.items()}
    return {name: value for name, value in named.items() if isinstance(value, Tensor)}


def _rows_of(batch: AdvantageInputs, order: Tensor) -> AdvantageInputs:
    """Return these rows in this order; a parent that is not among them is left out."""
    moved: dict[str, Any] = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if field.name == "reward_parts":
            moved[field.name] = {name: part[order] for name, part in value.items()}
        elif field.name == "stop":
            moved[field.name] = [value[i] for i in order.tolist()]
        elif field.name != "reward_weights" and value is not None:
            moved[field.name] = value[order]
    new_row = torch.full((len(batch.rewards),), -1)
    new_row[order] = torch.arange(len(order))
    moved["parent"] = torch.where(moved["parent"] >= 0, new_row[moved["parent"].clamp(min=0)], -1)
    return replace(batch, **moved)


def _token_fields(batch: AdvantageInputs) -> dict[str, Tensor]:
    shape, apart = batch.mask.shape, ("mask", "turn_rewards", "state_ids", "probe_logprobs")
    return {name: value for name, value in _tensors(batch).items() if value.shape == shape and name not in apart}


def _poisoned(batch: AdvantageInputs) -> AdvantageInputs:
    floats = {name: value for name, value in _token_fields(batch).items() if value.is_floating_point()}
    floats.pop("token_rewards", None)  # a reward may give some to inserted tokens
    poisoned: dict[str, Any] = {name: torch.where(batch.mask, value, POISON) for name, value in floats.items()}
    return replace(batch, **poisoned)


def _padded(batch: AdvantageInputs) -> AdvantageInputs:
    def widen(value: Tensor, fill: float) -> Tensor:
        return torch.nn.functional.pad(value, (0, 3), value=fill)

    integers = ("turn_ids", "node_ids", "policy_versions")
    wide: dict[str, Any] = {
        name: widen(value, -1 if name in integers else 0) for name, value in _token_fields(batch).items()
    }
    return replace(batch, mask=widen(batch.mask, False), **wide)
