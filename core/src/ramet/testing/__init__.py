"""The conformance kit and its doubles: checks that a plugin keeps the contract, run by its author.

`check_plugin("name")` runs everything; each `check_<kind>` takes one object. Names are imported on first use, so that
only the checks of agents, advantages and losses (and `tiny_batch`) load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ramet.testing.advantage import check_advantage
    from ramet.testing.agent import check_agent
    from ramet.testing.batches import tiny_batch, tiny_loss_batch
    from ramet.testing.benchmark import check_benchmark
    from ramet.testing.branch_policy import check_branch_policy
    from ramet.testing.doubles import (
        EchoTool,
        Reply,
        ScriptedEngine,
        ScriptedPolicy,
        echo_tool,
        local_services,
        tiny_encoder,
        written_rollout,
    )
    from ramet.testing.openai_server import OpenAIServer, RawReply
    from ramet.testing.plugin import check_plugin, registered
    from ramet.testing.policy_loss import check_policy_loss
    from ramet.testing.reward import check_reward
    from ramet.testing.rollout_step import check_rollout_step
    from ramet.testing.scripted_context import ScriptedContext, scripted_generate
    from ramet.testing.tool import check_tool, check_tool_set

_HOMES = {
    "EchoTool": "doubles",
    "OpenAIServer": "openai_server",
    "RawReply": "openai_server",
    "Reply": "doubles",
    "ScriptedContext": "scripted_context",
    "ScriptedEngine": "doubles",
    "ScriptedPolicy": "doubles",
    "check_advantage": "advantage",
    "check_agent": "agent",
    "check_benchmark": "benchmark",
    "check_branch_policy": "branch_policy",
    "check_plugin": "plugin",
    "check_policy_loss": "policy_loss",
    "check_reward": "reward",
    "check_rollout_step": "rollout_step",
    "check_tool": "tool",
    "check_tool_set": "tool",
    "echo_tool": "doubles",
    "local_services": "doubles",
    "registered": "plugin",
    "scripted_generate": "scripted_context",
    "tiny_batch": "batches",
    "tiny_loss_batch": "batches",
    "tiny_encoder": "doubles",
    "written_rollout": "doubles",
}

__all__ = [
    "EchoTool",
    "OpenAIServer",
    "RawReply",
    "Reply",
    "ScriptedContext",
    "ScriptedEngine",
    "ScriptedPolicy",
    "check_advantage",
    "check_agent",
    "check_benchmark",
    "check_branch_policy",
    "check_plugin",
    "check_policy_loss",
    "check_reward",
    "check_rollout_step",
    "check_tool",
    "check_tool_set",
    "echo_tool",
    "local_services",
    "registered",
    "scripted_generate",
    "tiny_batch",
    "tiny_encoder",
    "tiny_loss_batch",
    "written_rollout",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
