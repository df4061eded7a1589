"""What the core itself offers: through the same hooks as every plugin, and its engines, for which there is no hook."""

from __future__ import annotations

from typing import Any

from ramet.algorithms.config import GaeConfig, GrpoConfig, PpoClipConfig
from ramet.engines.config import TorchEngineConfig, VllmEngineConfig
from ramet.hookspecs import Register, hookimpl
from ramet.rollout.config import RandomBranchConfig, TagsConfig
from ramet.types import AdvantageEstimator, BranchPolicy, PolicyLoss, Reward, RolloutStep

ramet_contract = "1"


@hookimpl
def register_rollout_steps(register: Register[RolloutStep]) -> None:
    register("tags", "ramet.rollout.steps.tags:Tags", config=TagsConfig)


@hookimpl
def register_branch_policies(register: Register[BranchPolicy]) -> None:
    register("none", "ramet.rollout.branching.builtin:NoBranching")
    register("random", "ramet.rollout.branching.builtin:RandomBranching", config=RandomBranchConfig)


@hookimpl
def register_advantages(register: Register[AdvantageEstimator]) -> None:
    register("grpo", "ramet.algorithms.grpo:Grpo", config=GrpoConfig)
    register("gae", "ramet.algorithms.gae:Gae", config=GaeConfig)


@hookimpl
def register_policy_losses(register: Register[PolicyLoss]) -> None:
    register("ppo_clip", "ramet.algorithms.ppo_clip:PpoClip", config=PpoClipConfig)


@hookimpl
def register_rewards(register: Register[Reward]) -> None:
    register("environment", "ramet.rollout.environment_reward:EnvironmentReward")


def register_engines(register: Register[Any]) -> None:
    """Called when the plugins are loaded. A factory returns an `EngineBuilder`."""
    register("torch", "ramet.components.engines:TorchBuilder", config=TorchEngineConfig)
    register("vllm", "ramet.components.engines:VllmBuilder", config=VllmEngineConfig)
