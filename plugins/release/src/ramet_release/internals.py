"""Internals of Ramet that this plugin needs in addition to the plugin API; only this module imports them.

None of it is part of the contract, so this package is released together with the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet.config.schema import Config, OldLogprobs, RolloutConfig
from ramet.engines.protocol import Capability, Completion, Engine, FinishReason, Request, Sampling
from ramet.errors import raise_all
from ramet.event_loop import first_error
from ramet.plugins.plugin_code import named
from ramet.rollout.completion import Versions, append_completion, completion_problem
from ramet.rollout.keys import RolloutKey, path_text, request_seed, stable_seed
from ramet.rollout.method import RolloutMethod, Share
from ramet.rollout.plan import ResolvedPlan
from ramet.rollout.progress import RunCounts
from ramet.rollout.steps.tags import Tags
from ramet.rollout.tools.runner import CallTimes, ToolRunner
from ramet.rollout.tree import LiveRollout, group_of, new_root, segment_halves
from ramet.rollout.watchdog import Watchdog
from ramet.rollout.worker import RolloutWorker

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder

__all__ = [
    "CallTimes",
    "Capability",
    "Completion",
    "Config",
    "Encoder",
    "Engine",
    "FinishReason",
    "LiveRollout",
    "OldLogprobs",
    "Request",
    "ResolvedPlan",
    "RolloutConfig",
    "RolloutKey",
    "RolloutMethod",
    "RolloutWorker",
    "RunCounts",
    "Sampling",
    "Share",
    "Tags",
    "ToolRunner",
    "Versions",
    "Watchdog",
    "append_completion",
    "completion_problem",
    "first_error",
    "group_of",
    "named",
    "new_root",
    "path_text",
    "raise_all",
    "request_seed",
    "segment_halves",
    "stable_seed",
]
