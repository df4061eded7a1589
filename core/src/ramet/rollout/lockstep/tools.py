"""Calls tools as the released code does: again and again until one answers with some text.

An attempt that raises, or returns an empty text, is followed by another at once; the last failure becomes a fixed
sentence for the model, and never masks the rollout. Nothing is shared, cut or made visible. Time-outs, slots and the
tool's own rules for what is whose fault are the runtime's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ramet.errors import InfraError, ToolError
from ramet.rollout.tools.executor import CallProgress, ToolExecutor
from ramet.types import CallStatus, ToolCall, ToolRecord


class ReleasedTools:
    """The tools of one worker, which owns the executors."""

    def __init__(self, executors: Mapping[str, ToolExecutor]) -> None:
        self._executors = dict(executors)

    async def call(self, call: ToolCall, ends_at: float) -> ToolRecord:
        """The call as it happened; `text` is what the model is shown. Raises `PluginError` and `ConfigError`."""
        executor, progress = self._executors[call.name], CallProgress(ends_at)
        stats, text, attempts = executor.stats, "", 0
        stats.calls += 1
        while not text and attempts <= executor.config.retries and asyncio.get_running_loop().time() < ends_at:
            text = await _attempt(executor, call, progress)
            attempts += 1
        stats.retries += max(0, attempts - 1)
        stats.infra += not text
        stats.run_s.append(progress.run_s)
        stats.wait_s.append(progress.wait_s)
        return ToolRecord(
            turn=call.turn,
            name=call.name,
            arguments=dict(call.arguments),
            status=CallStatus.OK if text else CallStatus.ERROR,
            text=text or f"Tool({call.name}) returned empty output.",
            wait_s=progress.wait_s,
            run_s=progress.run_s,
            attempts=attempts,
        )


async def _attempt(executor: ToolExecutor, call: ToolCall, progress: CallProgress) -> str:
    """The tool's text; empty if it failed."""
    try:
        return (await executor.attempt(call, progress)).text
    except ToolError as error:  # the model's mistake, of which the released tools tell in their results
        return str(error)
    except InfraError:
        return ""
