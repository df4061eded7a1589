"""Ramet: agentic reinforcement learning with branching rollouts. Plugins import from here and from `helpers`."""

from ramet.errors import ConfigError, InfraError, PluginError, ToolError
from ramet.helpers import (
    ChatReply,
    EntropyScale,
    GroupStatistics,
    OpenAIClient,
    OpenAIOptions,
    OpenAIUsage,
    RequestRefused,
    entropy_change,
    from_jsonl,
    function_tool,
    group_statistics,
    json_rows,
    local_limiter,
    neutralise_chat_markup,
    rollout_scores,
    run_blocking,
)
from ramet.plugins.hookspecs import Register, hookimpl
from ramet.plugins.registered import code_of_reward, reward_named
from ramet.types import *  # noqa: F403
from ramet.types import __all__ as _types
from ramet.types.option import Resume, option

__version__ = "0.1.1"

__all__ = [
    "ChatReply",
    "ConfigError",
    "EntropyScale",
    "GroupStatistics",
    "InfraError",
    "OpenAIClient",
    "OpenAIOptions",
    "OpenAIUsage",
    "PluginError",
    "Register",
    "RequestRefused",
    "Resume",
    "ToolError",
    "code_of_reward",
    "entropy_change",
    "from_jsonl",
    "function_tool",
    "group_statistics",
    "hookimpl",
    "json_rows",
    "local_limiter",
    "neutralise_chat_markup",
    "option",
    "reward_named",
    "rollout_scores",
    "run_blocking",
    *_types,
]
