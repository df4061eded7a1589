"""One call of a tool, with the settings of a run: its options, time-out, retries, limits, and a state if it has one."""

from __future__ import annotations

import json
import logging

from ramet.config.resolved import Resolved
from ramet.config.schema import Config
from ramet.errors import ConfigError, ToolError
from ramet.event_loop import run_async
from ramet.play.tool_sessions import open_sessions
from ramet.rollout.steps.tags import call_arguments
from ramet.rollout.tools.runner import CallEnd, refused_call
from ramet.types import Task, ToolCall, ToolSchema

logger = logging.getLogger(__name__)


def run(resolved: Resolved, name: str, text: str, task: Task) -> CallEnd:
    """Call the tool with `text` as a model writes it between tags: a text, or a JSON object of arguments.

    Raises `ConfigError` for a tool that is not configured, and what opening the tools raises.
    """
    return run_async(_run(resolved.config, name, text, task))


async def _run(config: Config, name: str, text: str, task: Task) -> CallEnd:
    async with open_sessions(config, task, [name]) as sessions:
        schema = sessions.schemas.get(name)
        if schema is None:
            raise ConfigError(f"tool call: {name} is a set of tools; name one of them: {', '.join(sessions.schemas)}")
        arguments = {}
        if text.strip() or schema.parameters.get("required"):
            try:
                arguments = call_arguments(schema, text)
            except ToolError as error:
                return refused_call(ToolCall(name=name, arguments={}), str(error))
        _say_if_json(schema, text)
        return await sessions.open().call(name, arguments)


def _say_if_json(schema: ToolSchema, text: str) -> None:
    """A warning where a text looks like the arguments of the tool as JSON: it is taken as it is, as a model's is."""
    if schema.text_parameter is None or not text.lstrip().startswith("{"):
        return
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(parsed, dict) and parsed and set(parsed) <= set(schema.parameters.get("properties", {})):
        logger.warning(
            "tool call: %s takes one text, %s, and was given the JSON object as that text; write only the text",
            schema.name, schema.text_parameter,
        )  # fmt: skip
