"""Components of the core itself: through the same hooks as every plugin, and its engines, which have no hook."""

from __future__ import annotations

from typing import Any

from ramet.algorithms.advantages.config import (
    GaeConfig,
    GdpoConfig,
    GigpoConfig,
    GrpoConfig,
    GrpoPasskConfig,
    MaxRlConfig,
    ReinforcePpConfig,
    TreeGrpoConfig,
)
from ramet.algorithms.losses.config import (
    CispoConfig,
    DppoConfig,
    GmpoConfig,
    GspoConfig,
    M2poConfig,
    PpoClipConfig,
    SapoConfig,
)
from ramet.engines.config import OpenAIEngineConfig, TorchEngineConfig, VllmEngineConfig
from ramet.plugins.hookspecs import Register, hookimpl
from ramet.rollout.config import (
    CommandConfig,
    EnvironmentConfig,
    ExternalConfig,
    FromRowConfig,
    FunctionConfig,
    HermesConfig,
    McpConfig,
    NoBranchConfig,
    RandomBranchConfig,
    ShuffledConfig,
    StoredPrefixConfig,
    TagsConfig,
    TokenEntropyConfig,
    TreeExpansionConfig,
    ValueGuidedConfig,
)
from ramet.types import AdvantageEstimator, Agent, BranchPolicy, PolicyLoss, Reward, RolloutStep, Tool, ToolSet

ramet_contract = "1"


@hookimpl
def register_rollout_steps(register: Register[RolloutStep | Agent]) -> None:
    register("tags", "ramet.rollout.steps.tags:Tags", config=TagsConfig)
    register("hermes", "ramet.rollout.steps.hermes:Hermes", config=HermesConfig)
    register("function", "ramet.rollout.agents.function:FunctionAgent", config=FunctionConfig)
    register("command", "ramet.rollout.agents.command:CommandAgent", config=CommandConfig)
    register("external", "ramet.rollout.agents.external:ExternalAgent", config=ExternalConfig)


@hookimpl
def register_branch_policies(register: Register[BranchPolicy]) -> None:
    register("none", "ramet.rollout.branching.builtin:NoBranching", config=NoBranchConfig)
    register("random", "ramet.rollout.branching.builtin:RandomBranching", config=RandomBranchConfig)
    register("shuffled", "ramet.rollout.branching.shuffled:Shuffled", config=ShuffledConfig)
    register("tree_grpo", "ramet.rollout.branching.tree_expansion:TreeExpansion", config=TreeExpansionConfig)
    register("value_guided", "ramet.rollout.branching.value_guided:ValueGuided", config=ValueGuidedConfig)
    register("stored_prefix", "ramet.rollout.branching.stored_prefix:StoredPrefixes", config=StoredPrefixConfig)
    register("token_entropy", "ramet.rollout.branching.token_entropy:TokenEntropy", config=TokenEntropyConfig)


@hookimpl
def register_advantages(register: Register[AdvantageEstimator]) -> None:
    register("grpo", "ramet.algorithms.advantages.grpo:Grpo", config=GrpoConfig)
    register("gae", "ramet.algorithms.advantages.gae:Gae", config=GaeConfig)
    register("rloo", "ramet.algorithms.advantages.rloo:Rloo")
    register("opo", "ramet.algorithms.advantages.opo:Opo")
    register("remax", "ramet.algorithms.advantages.remax:Remax")
    register("reinforce_pp", "ramet.algorithms.advantages.reinforce_pp:ReinforcePp", config=ReinforcePpConfig)
    register("reinforce_pp_baseline", "ramet.algorithms.advantages.reinforce_pp:ReinforcePpBaseline")
    register("grpo_passk", "ramet.algorithms.advantages.grpo_passk:GrpoPassk", config=GrpoPasskConfig)
    register("gdpo", "ramet.algorithms.advantages.gdpo:Gdpo", config=GdpoConfig)
    register("maxrl", "ramet.algorithms.advantages.maxrl:MaxRl", config=MaxRlConfig)
    register("gigpo", "ramet.algorithms.advantages.gigpo:Gigpo", config=GigpoConfig)
    register("tree_grpo", "ramet.algorithms.advantages.tree_grpo:TreeGrpo", config=TreeGrpoConfig)
    register("treerl", "ramet.algorithms.advantages.treerl:TreeRl")


@hookimpl
def register_policy_losses(register: Register[PolicyLoss]) -> None:
    register("ppo_clip", "ramet.algorithms.losses.ppo_clip:PpoClip", config=PpoClipConfig)
    register("gspo", "ramet.algorithms.losses.gspo:Gspo", config=GspoConfig)
    register("cispo", "ramet.algorithms.losses.cispo:Cispo", config=CispoConfig)
    register("sapo", "ramet.algorithms.losses.sapo:Sapo", config=SapoConfig)
    register("gmpo", "ramet.algorithms.losses.gmpo:Gmpo", config=GmpoConfig)
    register("dppo", "ramet.algorithms.losses.dppo:Dppo", config=DppoConfig)
    register("m2po", "ramet.algorithms.losses.m2po:M2po", config=M2poConfig)


@hookimpl
def register_tools(register: Register[Tool | ToolSet]) -> None:
    register("from_row", "ramet.rollout.tools.from_row:FromRow", config=FromRowConfig)
    register("mcp", "ramet.rollout.tools.mcp:McpServer", config=McpConfig)


@hookimpl
def register_rewards(register: Register[Reward]) -> None:
    register("environment", "ramet.rollout.environment_reward:EnvironmentReward", config=EnvironmentConfig)


def register_engines(register: Register[Any]) -> None:
    """Called when the plugins are loaded. A factory returns an `EngineBuilder`."""
    register("torch", "ramet.components.engines:TorchBuilder", config=TorchEngineConfig)
    register("vllm", "ramet.components.engines:VllmBuilder", config=VllmEngineConfig)
    register("openai", "ramet.components.engines:OpenAIBuilder", config=OpenAIEngineConfig)
