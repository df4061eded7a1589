"""One training step of every preset: its updates make ratios that its loss clips, so that two losses learn two things.

With one optimiser step a ratio is 1, and all losses are the same one.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest
from torch import Tensor

from ramet.algorithms.losses.cispo import Cispo
from ramet.algorithms.losses.config import (
    CispoConfig,
    Divergence,
    DppoConfig,
    GmpoConfig,
    GspoConfig,
    PpoClipConfig,
    RatioUnit,
    SapoConfig,
)
from ramet.algorithms.losses.dppo import Dppo
from ramet.algorithms.losses.gmpo import Gmpo
from ramet.algorithms.losses.gspo import Gspo
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.algorithms.losses.sapo import Sapo
from ramet.components.build import Components
from ramet.components.checks import warn_of_ratio_one
from ramet.config.compose import compose
from ramet.config.schema import LossAggregation, TrainConfig
from ramet.policy.batching.rows import Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import PolicySpec
from ramet.types import PolicyLoss

MakeRows = Callable[..., list[Row]]
MakeSpec = Callable[..., PolicySpec]
PRESETS = sorted(path.name[:-5] for path in files("ramet.conf.algorithm").iterdir() if path.name.endswith(".yaml"))
ON_POLICY = {"opo", "remax", "treerl"}  # their papers take one step, and clip nothing
Update = Callable[..., tuple[dict[str, Tensor], Mapping[str, float]]]


@pytest.fixture
def update(make_spec: MakeSpec, make_rows: MakeRows, make_advantages: Callable[[list[Row]], Tensor]) -> Update:
    """The weights after one step of a worker with this loss and these updates, and its metrics."""

    def run(train: TrainConfig, loss: PolicyLoss) -> tuple[dict[str, Tensor], Mapping[str, float]]:
        rows = [_easy(row) for row in make_rows(24)]
        worker = PolicyRank(dataclasses.replace(make_spec(lr=0.04), train=train, policy_loss=loss))
        metrics = worker.update(TrainBatch(rows=rows).with_advantages(make_advantages(rows)), 1)
        return {name: value.clone() for name, value in worker.weights()}, metrics

    return run


def _easy(row: Row) -> Row:
    """In turns of three tokens, and with few words, others where the advantage is negative: probabilities move far."""
    length = len(row.response_ids)
    words = row.response_ids % 4 + 2 * (int(row.rollout_id) % 2)
    return dataclasses.replace(row, response_ids=words, turn_ids=np.arange(length, dtype=np.int32) // 3)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_clips(update: Update, preset: str, caplog: pytest.LogCaptureFixture) -> None:
    config = compose(["model.path=m", "engine=torch", f"algorithm={preset}"], job="train").config
    loss = Components(config).loss
    _, metrics = update(dataclasses.replace(config.train, kl_coef=0.0), loss)
    assert 0 < metrics["train/optimizer_steps"] <= config.train.minibatches * config.train.epochs  # all clipped: none
    with caplog.at_level(logging.WARNING):
        warn_of_ratio_one(config, loss)
    if preset in ON_POLICY:
        assert metrics["train/clip_fraction"] == 0 and "the ratio is 1" in caplog.text
        return
    assert not caplog.records
    assert metrics["train/gate"] < 0.95 if preset == "sapo" else metrics["train/clip_fraction"] > 0


def test_two_losses_or_bounds_leave_two_policies(update: Update) -> None:
    losses = {
        "PPO": PpoClip(PpoClipConfig(dual_clip=None)),
        "dual clip": PpoClip(PpoClipConfig()),
        "DAPO": PpoClip(PpoClipConfig(dual_clip=None, clip_high=0.28)),
        "DPPO": Dppo(DppoConfig()),
        "DPPO by KL": Dppo(DppoConfig(divergence=Divergence.KL)),
        "CISPO": Cispo(CispoConfig()),
        "GMPO": Gmpo(GmpoConfig()),
        "GSPO": Gspo(GspoConfig()),
        "GSPO by turn": Gspo(GspoConfig(unit=RatioUnit.TURN, clip_low=3e-3, clip_high=4e-3)),
        "SAPO": Sapo(SapoConfig()),
    }
    train = TrainConfig(minibatches=4, epochs=2, loss_aggregation=LossAggregation.SEQ_MEAN_TOKEN_MEAN, tis_cap=None)
    weights = {name: update(train, loss)[0] for name, loss in losses.items()}
    for one, other in combinations(weights, 2):
        apart = max((weights[one][name] - weights[other][name]).abs().max().item() for name in weights[one])
        assert apart > 1e-4, (one, other)
