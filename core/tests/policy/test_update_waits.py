"""The host waits for the device once per optimiser step and at the end of an update, never for a micro-batch.

Prefixes are computed once, since for other rows transformers asks the device whether they are packed, once a pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ramet
from ramet.algorithms.losses.config import GspoConfig, PpoClipConfig, RatioUnit
from ramet.algorithms.losses.gspo import Gspo
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.config.schema import LossAggregation, ModelConfig, PolicyConfig, SharePrefixes, TrainConfig
from ramet.plugins import load_plugins
from ramet.policy.batching.rows import Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import CriticSpec, PolicySpec
from ramet.testing.device_waits import device_waits
from ramet.types import CriticOptions, LossInputs, LossOutput

RAMET = str(Path(ramet.__file__).parent)
LOSSES = {e.name: e for e in load_plugins().registries.policy_losses if e.distribution == "ramet"}
EVERYTHING: dict[str, Any] = {
    "loss_aggregation": LossAggregation.SEQ_MEAN_TOKEN_MEAN,
    "kl_coef": 0.1,
    "entropy_coef": 0.01,
    "off_policy": {
        "tis_level": "sequence",
        "token_band": [0.5, 2.0],
        "sequence_band": [0.9, 1.1],
        "negative_gap_max": 0.5,
    },
}


@pytest.fixture
def batch(make_tree_rows: Callable[..., list[Row]], make_advantages: Callable[[list[Row]], Tensor]) -> TrainBatch:
    """Twelve rows with all that an update may be given, half of them second threads of the others' rollouts."""
    rows = [_in_turns(row) for row in make_tree_rows(2)]
    known, advantages = [row.engine_logprobs for row in rows], make_advantages(rows)
    return TrainBatch(
        rows=rows, rollouts=[i // 2 for i in range(12)], old_logprobs=known, ref_logprobs=known, values=known,
        kl_coef=0.1,
    ).with_advantages(advantages, returns=advantages, weights=advantages.abs() / 2)  # fmt: skip


def _in_turns(row: Row) -> Row:
    return dataclasses.replace(row, turn_ids=np.arange(len(row.response_ids), dtype=np.int32) // 3)


def waits_in_ramet(update: Callable[[], object]) -> list[str]:
    """Sorted, without torch's optimiser, which counts steps on the host."""
    with device_waits() as waits:
        update()
    return sorted(wait for wait in waits if RAMET in wait and "self.optimizer.step()" not in _line(wait))


def _line(wait: str) -> str:
    file, line = wait.rpartition(" at ")[2].rsplit(":", 1)
    return Path(file).read_text().splitlines()[int(line) - 1]


@pytest.mark.parametrize(
    ("loss", "options"), [("ppo_clip", {}), *((name, EVERYTHING) for name in [*LOSSES, "gspo by turn"])]
)
def test_more_micro_batches_wait_no_more(
    make_spec: Callable[..., PolicySpec], batch: TrainBatch, loss: str, options: dict[str, Any]
) -> None:
    if loss == "gspo by turn":
        policy_loss: Any = Gspo(GspoConfig(unit=RatioUnit.TURN))
    else:
        policy_loss = LOSSES[loss].build(LOSSES[loss].config())

    def waits(budget: int) -> list[str]:
        spec = make_spec(
            policy_loss=policy_loss, share_prefixes=SharePrefixes.ALWAYS, max_microbatch_tokens=budget, minibatches=2,
            **options,
        )  # fmt: skip
        worker = PolicyRank(spec)
        return waits_in_ramet(lambda: worker.update(batch, 1))

    few, many = waits(4096), waits(1)
    assert few == many
    # Loss and norm of two optimiser steps; sums, squares and maxima once, and the ratios of the percentiles.
    assert len(few) == 2 * 2 + 3 + 2, few


class Waiting(PpoClip):
    """PPO's loss, with a metric by a boolean mask."""

    def __call__(self, batch: LossInputs) -> LossOutput:
        output = super().__call__(batch)
        mean = batch.advantages[batch.mask].mean().expand(len(batch.mask))
        return dataclasses.replace(output, metrics={"mean": mean})


def test_a_wait_of_a_loss_is_found(make_spec: Callable[..., PolicySpec], batch: TrainBatch) -> None:
    never = SharePrefixes.NEVER
    worker = PolicyRank(make_spec(policy_loss=Waiting(PpoClipConfig()), max_microbatch_tokens=1, share_prefixes=never))
    with device_waits() as waits:
        worker.update(batch, 1)
    assert sum(wait.startswith(f"aten.index.Tensor at {__file__}:") for wait in waits) == 12


def test_a_critic_waits_no_more_for_more_micro_batches(tiny: Path, batch: TrainBatch) -> None:
    def waits(budget: int) -> list[str]:
        policy = PolicyConfig(max_microbatch_tokens=budget, share_prefixes=SharePrefixes.ALWAYS)
        model, train = ModelConfig(path=str(tiny)), TrainConfig(minibatches=2)
        options = CriticOptions(lr=1e-3, value_clip=0.5)
        critic = CriticSpec(model=model, policy=policy, train=train, options=options, total_steps=9, seed=1)
        spec = PolicySpec(
            model=model, policy=policy, train=train, policy_loss=PpoClip(PpoClipConfig()), temperature=1.0,
            max_response_tokens=32, total_steps=9, seed=1,
        )  # fmt: skip
        worker = PolicyRank(spec, critic)
        return waits_in_ramet(lambda: worker.update_critic(batch, 1))

    few = waits(4096)
    assert few == waits(1) and len(few) == 2 * 2 + 1, few


@pytest.mark.parametrize(
    "wait",
    [
        lambda x, mask: float(x.sum()),
        lambda x, mask: x[0].item(),
        lambda x, mask: bool(mask.any()),
        lambda x, mask: x.tolist(),
        lambda x, mask: x[mask],
        lambda x, mask: x.masked_select(mask),
        lambda x, mask: mask.nonzero(),
        lambda x, mask: torch.where(mask),
        lambda x, mask: torch.unique(x),
        lambda x, mask: torch.equal(x, x),
        lambda x, mask: x.long().bincount(),
        lambda x, mask: x.repeat_interleave(x.long()),
    ],
)
def test_every_form_of_a_wait_is_found(wait: Callable[[Tensor, Tensor], object]) -> None:
    values = torch.arange(5.0)
    with device_waits() as waits:
        wait(values, values > 2)
    assert len(waits) == 1 and f" at {__file__}:" in waits[0]


def test_what_knows_its_size_is_no_wait() -> None:
    values = torch.arange(5.0, requires_grad=True)
    with device_waits() as waits:
        chosen = torch.where(values.detach() > 2, values, 0.0)[torch.tensor([0, 1])]
        (chosen.sum() + values.index_select(0, torch.tensor([2]))).backward()
        values.detach()[values.detach() > 2] = 0.0
    assert waits == []
