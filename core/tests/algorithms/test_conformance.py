"""Every registered algorithm of the core keeps the contract, with its defaults and with what else its options allow."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from ramet.algorithms.losses.config import Divergence, RatioUnit
from ramet.plugins import load_plugins
from ramet.testing import check_advantage, check_policy_loss

ADVANTAGES: dict[str, list[dict[str, Any]]] = {
    "grpo": [{"normalize_std": False}],
    "grpo_passk": [{"normalize_std": False}],
    "gae": [{"gamma": 0.99, "lam": 0.95, "whiten": False}, {"gamma": 0.9, "skip_inserted": False}],
    "reinforce_pp": [{"gamma": 0.9}, {"gamma": 0.9, "skip_inserted": False}],
    "gdpo": [{"batch_std": False, "weights": {"correct": 1.0, "format": 0.5}}],
    "gigpo": [{"normalize_std": False, "gamma": 0.5}],
    "tree_grpo": [{"intra": False}, {"inter": False}],
}
LOSSES: dict[str, list[dict[str, Any]]] = {
    "ppo_clip": [{"clip_high": 0.28, "dual_clip": None}],
    "gspo": [{"unit": RatioUnit.TURN, "clip_low": 0.2, "clip_high": 0.2}],
    "cispo": [{"clip_low": 0.2, "clip_high": 0.28}],
    "dppo": [{"divergence": Divergence.KL, "bound_low": 0.05, "bound_high": 0.05}],
}


def variants(kind: str, options: dict[str, list[dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    names = [entry.name for entry in getattr(load_plugins().registries, kind) if entry.distribution == "ramet"]
    assert set(options) <= set(names)
    return [(name, chosen) for name in names for chosen in ({}, *options.get(name, []))]


def build(kind: str, name: str, options: dict[str, Any]) -> Any:
    entry = load_plugins().get(kind, name)
    return entry.build(None if entry.config is None else entry.config(**options))


@pytest.mark.parametrize(("name", "options"), variants("advantages", ADVANTAGES))
def test_an_estimator_keeps_the_contract(name: str, options: dict[str, Any]) -> None:
    check_advantage(build("advantages", name, options))


@pytest.mark.parametrize(("name", "options"), variants("policy_losses", LOSSES))
def test_a_loss_keeps_the_contract(name: str, options: dict[str, Any]) -> None:
    with warnings.catch_warnings(action="error"):  # of waits for the device
        check_policy_loss(build("policy_losses", name, options))
