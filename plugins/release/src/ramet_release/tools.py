"""Calls tools as the released code does: again and again until one answers with some text.

An attempt that raises, or returns an empty text, is followed by another at once; the last failure becomes a fixed
sentence for the model, and never masks the rollout. Nothing is shared, cut or made visible. Time-outs, slots and the
tool's own rules for faults are the runner's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ramet import CallStatus, InfraError, ToolCall, ToolError, ToolRecord
from ramet_release.internals import CallTimes, ToolRunner


class ReleasedTools:
    """The tools of one worker, which owns their runners."""

    def __init__(self, runners: Mapping[str, ToolRunner]) -> None:
        self._runners = runners

    async def call(self, call: ToolCall, ends_at: float) -> ToolRecord:
        """The call as it happened; `text` is what the model is shown. Raises `PluginError` and `ConfigError`."""
        runner, times = self._runners[call.name], CallTimes(ends_at)
        stats, text, attempts = runner.stats, "", 0
        stats.calls += 1
        while not text and attempts <= runner.config.retries and asyncio.get_running_loop().time() < ends_at:
            text = await _attempt(runner, call, times)
            attempts += 1
        stats.retries += max(0, attempts - 1)
        stats.infra += not text
        stats.run_s.append(times.run_s)
        stats.wait_s.append(times.wait_s)
        return ToolRecord(
            turn=call.turn,
            name=call.name,
            arguments=dict(call.arguments),
            status=CallStatus.OK if text else CallStatus.ERROR,
            text=text or f"Tool({call.name}) returned empty output.",
            wait_s=times.wait_s,
            run_s=times.run_s,
            attempts=attempts,
        )


async def _attempt(runner: ToolRunner, call: ToolCall, times: CallTimes) -> str:
    """The tool's text; empty if it failed."""
    try:
        return (await runner.attempt(call, times)).text
    except ToolError as error:  # the model's mistake, of which the released tools tell in their results
        return str(error)
    except InfraError:
        return ""
