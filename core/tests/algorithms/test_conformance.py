from __future__ import annotations

import pytest

from ramet.algorithms.config import GaeConfig, GrpoConfig, PpoClipConfig
from ramet.algorithms.gae import Gae
from ramet.algorithms.grpo import Grpo
from ramet.algorithms.ppo_clip import PpoClip
from ramet.testing import check_advantage, check_policy_loss


@pytest.mark.parametrize("config", [GrpoConfig(), GrpoConfig(normalize_std=False)])
def test_grpo_keeps_the_contract(config: GrpoConfig) -> None:
    check_advantage(Grpo(config))


@pytest.mark.parametrize("config", [GaeConfig(), GaeConfig(gamma=0.99, lam=0.95, whiten=False)])
def test_gae_keeps_the_contract(config: GaeConfig) -> None:
    check_advantage(Gae(config))


@pytest.mark.parametrize("config", [PpoClipConfig(), PpoClipConfig(clip_high=0.28, dual_clip=None)])
def test_ppo_clip_keeps_the_contract(config: PpoClipConfig) -> None:
    check_policy_loss(PpoClip(config))
