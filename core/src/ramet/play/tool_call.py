"""One call of a tool, with the settings of a run: its options, time-out, retries, limits, and a state if it has one.

Without a model nothing can be counted in tokens, so results are then not cut.
"""

from __future__ import annotations

import json
import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ramet.components.services import RunServices
from ramet.components.toolbox import open_tools
from ramet.config.catalog import suggest
from ramet.config.resolved import Resolved
from ramet.config.schema import Config, ToolConfig
from ramet.errors import ConfigError, ToolError
from ramet.event_loop import run_async
from ramet.rollout.stateful import tool_components
from ramet.rollout.steps.tags import call_arguments
from ramet.rollout.tools.runner import CallEnd, ToolRunner, refused_call
from ramet.rollout.watchdog import Watchdog
from ramet.types import Task, Tool, ToolCall, ToolSchema, user_prompt

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder

logger = logging.getLogger(__name__)
UNLIMITED = 1 << 40


def run(resolved: Resolved, name: str, text: str) -> CallEnd:
    """Call the tool with `text` as a model writes it between tags: a text, or a JSON object of arguments.

    Raises `ConfigError` for a tool that is not configured, and what opening the tools raises.
    """
    return run_async(_run(resolved.config, name, text))


async def _run(config: Config, name: str, text: str) -> CallEnd:
    with tempfile.TemporaryDirectory(prefix="ramet-tool-") as folder:
        box = await open_tools(config, RunServices(folder=Path(folder), seed=config.run.seed))
        try:
            if name not in box.tools:
                configured = ", ".join(box.tools) or "none"
                close = suggest(name, box.tools)
                raise ConfigError(f"tool call: no tool {name!r}; configured: {configured}{'.' if close else ''}{close}")
            return await _call(config, *box.tools[name], box.schemas[name], text)
        finally:
            await box.close()


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


class NoTokens:
    """Stands in for an `Encoder` without a model: nothing is counted, so nothing is cut."""

    def untrusted(self, text: str) -> list[int]:
        return []


def _encoder(config: Config) -> Encoder | None:
    """Return the model's encoder; None without a model. Imports transformers only for a model: it takes seconds."""
    if not config.model.path:
        return None
    from ramet.models.check import has_tokenizer
    from ramet.models.loading import build_encoder

    return build_encoder(config) if has_tokenizer(config.model) else None


async def _call(config: Config, tool: Tool, settings: ToolConfig, schema: ToolSchema, text: str) -> CallEnd:
    call = ToolCall(name=schema.name, arguments={}, rollout="call", task=Task(id="call", prompt=user_prompt("")))
    if text.strip() or schema.parameters.get("required"):
        try:
            call = replace(call, arguments=call_arguments(schema, text))
        except ToolError as error:
            return refused_call(call, str(error))
    _say_if_json(schema, text)
    encoder = _encoder(config)
    if encoder is None:
        encoder, settings = cast("Encoder", NoTokens()), replace(settings, max_result_tokens=UNLIMITED)
    runner = ToolRunner(schema.name, tool, settings, encoder, Watchdog())
    assert call.task is not None
    for component in tool_components({schema.name: (tool, settings)}):
        state = await component.owner.open(call.task, config.run.seed)
        try:
            return await runner.run(replace(call, state=state))
        finally:
            await component.owner.close(state)
    return await runner.run(call)
