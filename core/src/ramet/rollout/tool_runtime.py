"""Runs tools for rollouts, so that a tool need not know of time-outs, retries, limits, sharing or metrics.

Whose fault it is decides: `ToolError` (and a result with `error`) is the model's and goes back to it; a time-out, an
`InfraError` or any other exception is ours, is retried and then masks the rollout. A tool runs in a task that nobody
waits for longer than its time-out: one that hangs and ignores its cancellation harms only its own rollout.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ramet.config.schema import ToolConfig
from ramet.errors import ConfigError, InfraError, PluginError, ToolError
from ramet.rollout.tool_arguments import check_arguments
from ramet.rollout.tool_stats import ToolStats, tool_metrics
from ramet.rollout.tool_text import fit
from ramet.rollout.watchdog import Watchdog
from ramet.types import CallStatus, Tool, ToolCall, ToolResult, ToolSchema

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder

logger = logging.getLogger(__name__)
BACKOFF_S = 0.2  # before the first retry; doubles with each, up to MAX_BACKOFF_S
MAX_BACKOFF_S = 5.0
CLOSE_TIMEOUT_S = 10.0


@dataclass(slots=True, kw_only=True)
class ToolOutcome:
    """How one call ended, whoever is to blame. `raised`: the tool raised `ToolError` instead of returning."""

    status: CallStatus
    text: str
    wait_s: float = 0.0
    run_s: float = 0.0
    attempts: int = 0
    cached: bool = False
    truncated: bool = False
    raised: bool = False
    metadata: Mapping[str, Any] | None = None


class ToolRuntime:
    """All tools of one rollout worker."""

    def __init__(self, tools: Mapping[str, tuple[Tool, ToolConfig]], encoder: Encoder, watchdog: Watchdog) -> None:
        self._lanes = {name: _Lane(name, *pair, encoder, watchdog) for name, pair in tools.items()}

    @property
    def schemas(self) -> dict[str, ToolSchema]:
        return {name: lane.schema for name, lane in self._lanes.items()}

    async def run(self, call: ToolCall) -> ToolOutcome:
        """Raises only what stops the run: `PluginError` and `ConfigError`."""
        return await self._lanes[call.name].run(call)

    async def close_rollout(self, rollout: str) -> None:
        """The rollout is over: tools that hold state for it let it go."""
        for lane in self._lanes.values():
            await lane.close_rollout(rollout)

    def take_stats(self) -> dict[str, ToolStats]:
        """Of each tool, since the last call."""
        taken = {name: lane.stats for name, lane in self._lanes.items()}
        for lane in self._lanes.values():
            lane.stats = ToolStats()
        return taken

    def metrics(self) -> dict[str, float]:
        """`tool/NAME/…`, since the last call."""
        return tool_metrics(self.take_stats())

    async def close(self) -> None:
        for lane in self._lanes.values():
            await lane.close()


class _ResultError(InfraError):
    """A tool returned something else than the contract says. Trying again would not help."""


@dataclass(slots=True)
class _Flight:
    """One execution that several identical calls wait for."""

    task: asyncio.Task[ToolOutcome]
    waiters: int = 0


class _Clock:
    """Time that one call spent waiting and running."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.run_s = 0.0

    @property
    def wait_s(self) -> float:
        return max(0.0, time.perf_counter() - self.begun - self.run_s)


class _Lane:
    """One tool with its limits."""

    def __init__(self, name: str, tool: Tool, config: ToolConfig, encoder: Encoder, watchdog: Watchdog) -> None:
        self.name = name
        self.tool = tool
        self.config = config
        self.schema = replace(tool.schema, name=name)
        self.stats = ToolStats()
        self._encoder = encoder
        self._watchdog = watchdog
        self._slots = asyncio.Semaphore(config.concurrency if self.schema.concurrent else 1)
        self._running: set[asyncio.Task[Any]] = set()  # the loop holds tasks only weakly
        self._flights: dict[str, _Flight] = {}
        self._opened: dict[str, asyncio.Task[None]] = {}
        self._has_state = hasattr(tool, "open")

    async def run(self, call: ToolCall) -> ToolOutcome:
        self.stats.calls += 1
        try:
            check_arguments(self.schema, call.arguments)
        except ToolError as error:
            self.stats.errors += 1
            text, truncated = fit(str(error), self.config.max_result_tokens, self._encoder)
            return ToolOutcome(status=CallStatus.ERROR, text=text, truncated=truncated, raised=True)
        shared = self._share_key(call)
        outcome = await (self._execute(call) if shared is None else self._join(shared, call))
        self._count(outcome)
        return outcome

    def _count(self, outcome: ToolOutcome) -> None:
        self.stats.errors += outcome.status is CallStatus.ERROR
        self.stats.infra += outcome.status is CallStatus.INFRA
        self.stats.truncated += outcome.truncated

    def _share_key(self, call: ToolCall) -> str | None:
        if not self.schema.deterministic or self._has_state:
            return None
        return json.dumps(call.arguments, sort_keys=True, default=repr)

    async def _join(self, key: str, call: ToolCall) -> ToolOutcome:
        """Single flight. The execution belongs to no caller: it ends early only when all of them are gone."""
        flight = self._flights.get(key)
        joined = flight is not None
        if flight is None:
            flight = self._flights[key] = _Flight(self._spawn(self._execute(call)))
        self.stats.shared += joined
        flight.waiters += 1
        try:
            outcome = await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if flight.task.done() or not flight.waiters:
                flight.task.cancel()
                if self._flights.get(key) is flight:
                    del self._flights[key]
        return replace(outcome, cached=True) if joined else outcome

    async def _execute(self, call: ToolCall) -> ToolOutcome:
        clock = _Clock()
        attempts = 0
        while True:
            attempts += 1
            try:
                result = await self._attempt(call, clock)
                text, truncated = fit(result.text, self.config.max_result_tokens, self._encoder)
                status = CallStatus.ERROR if result.error else CallStatus.OK
                end = ToolOutcome(
                    status=status, text=text, truncated=truncated, cached=result.cached, metadata=result.metadata
                )
                break
            except ToolError as error:
                text, truncated = fit(str(error), self.config.max_result_tokens, self._encoder)
                end = ToolOutcome(status=CallStatus.ERROR, text=text, truncated=truncated, raised=True)
                break
            except InfraError as error:
                if isinstance(error, _ResultError) or attempts > self.config.retries:
                    end = ToolOutcome(status=CallStatus.INFRA, text=str(error))
                    break
            await self._back_off(attempts, call)
        self.stats.wait_s.append(clock.wait_s)
        self.stats.run_s.append(clock.run_s)
        end.wait_s, end.run_s, end.attempts = clock.wait_s, clock.run_s, attempts
        return end

    async def _back_off(self, attempts: int, call: ToolCall) -> None:
        self.stats.retries += 1
        with self._watchdog.wait(f"retry of tool:{self.name} rollout {call.rollout}"):
            await asyncio.sleep(min(MAX_BACKOFF_S, BACKOFF_S * 2 ** (attempts - 1)))

    async def _attempt(self, call: ToolCall, clock: _Clock) -> ToolResult:
        if self._slots.locked():
            with self._watchdog.wait(f"slot of tool:{self.name} rollout {call.rollout}"):
                await self._slots.acquire()
        else:
            await self._slots.acquire()
        started = time.perf_counter()
        self.stats.executed += 1
        try:
            with self._watchdog.wait(f"tool:{self.name} rollout {call.rollout}"):
                return _checked(await self._within(self._call(call), self.config.timeout_s), self.name)
        finally:
            self._slots.release()
            clock.run_s += time.perf_counter() - started

    async def _call(self, call: ToolCall) -> ToolResult:
        """Whatever the tool raises leaves here as one of the four errors."""
        try:
            if self._has_state:
                await self._open(call.rollout)
            return await self.tool(call)
        except (ToolError, InfraError, PluginError, ConfigError):
            raise
        except (Exception, SystemExit) as error:
            raise InfraError(f"tool {self.name!r} raised {type(error).__name__}: {error}") from error

    async def _within(self, work: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        """Wait for `work` this long and not longer, even if it does not let itself be cancelled."""
        task = self._spawn(work)
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
            raise InfraError(f"tool {self.name!r} did not return within {timeout_s:g} s")
        if task.cancelled():
            raise InfraError(f"tool {self.name!r} cancelled itself")
        return task.result()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not report an abandoned call

    async def _open(self, rollout: str) -> None:
        opening = self._opened.get(rollout)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            opening = self._opened[rollout] = self._spawn(self.tool.open(rollout))  # type: ignore[attr-defined]
        await asyncio.shield(opening)

    async def close_rollout(self, rollout: str) -> None:
        if self._opened.pop(rollout, None) is not None and hasattr(self.tool, "close"):
            await self._quietly(self.tool.close(rollout), f"close of tool:{self.name} rollout {rollout}")

    async def close(self) -> None:
        """End what still runs, then the tool itself."""
        for rollout in list(self._opened):
            await self.close_rollout(rollout)
        for task in list(self._running):
            task.cancel()
        if hasattr(self.tool, "aclose"):
            await self._quietly(self.tool.aclose(), f"close of tool:{self.name}")

    async def _quietly(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Cleaning up must not change what a rollout was: errors are logged."""
        try:
            with self._watchdog.wait(name):
                await self._within(work, CLOSE_TIMEOUT_S)
        except Exception as error:
            logger.warning("%s failed: %s: %s", name, type(error).__name__, error)


def _checked(result: object, name: str) -> ToolResult:
    if not isinstance(result, ToolResult):
        raise _ResultError(f"tool {name!r} returned {type(result).__name__}; allowed: ToolResult")
    if not isinstance(result.text, str):
        raise _ResultError(f"tool {name!r} returned a result whose text is {type(result.text).__name__}, not str")
    return result
