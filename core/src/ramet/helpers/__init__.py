"""One mechanism for each thing that components need: the core uses them, and plugins import them from here.

The package imports nothing heavy; what needs a library imports it at its first use.
"""

from ramet.helpers.agent_options import AgentOptions
from ramet.helpers.arguments import argument_problem
from ramet.helpers.chat_markup import neutralise_chat_markup
from ramet.helpers.entropy import EntropyScale, entropy_change
from ramet.helpers.function_tool import (
    CLIENTS,
    MODEL_MISTAKES,
    FunctionError,
    function_tool,
    is_outage,
    run_blocking,
)
from ramet.helpers.group_scores import GroupStatistics, group_statistics, rollout_scores
from ramet.helpers.http import HttpClient, HttpFailure, read_body, retry_after_s
from ramet.helpers.json_calls import JsonCall, MalformedCall, find_calls, inert_results, message_of
from ramet.helpers.limiter import local_limiter
from ramet.helpers.openai.client import OpenAIClient
from ramet.helpers.openai.options import ChatReply, OpenAIOptions, OpenAIUsage, RequestRefused
from ramet.helpers.per_loop import PerLoop
from ramet.helpers.process_pool import Caller, ProcessLost, ProcessPool
from ramet.helpers.single_flight import SingleFlight
from ramet.helpers.task_files import from_jsonl, json_rows
from ramet.processes import own_reaper

__all__ = [
    "CLIENTS",
    "MODEL_MISTAKES",
    "AgentOptions",
    "Caller",
    "ChatReply",
    "EntropyScale",
    "FunctionError",
    "GroupStatistics",
    "HttpClient",
    "HttpFailure",
    "JsonCall",
    "MalformedCall",
    "OpenAIClient",
    "OpenAIOptions",
    "OpenAIUsage",
    "PerLoop",
    "ProcessLost",
    "ProcessPool",
    "RequestRefused",
    "SingleFlight",
    "argument_problem",
    "entropy_change",
    "find_calls",
    "from_jsonl",
    "function_tool",
    "group_statistics",
    "inert_results",
    "is_outage",
    "json_rows",
    "local_limiter",
    "message_of",
    "neutralise_chat_markup",
    "own_reaper",
    "read_body",
    "retry_after_s",
    "rollout_scores",
    "run_blocking",
]
