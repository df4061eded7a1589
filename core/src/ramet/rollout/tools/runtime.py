"""Runs tools for rollouts, so that a tool need not know of time-outs, retries, limits, sharing or metrics.

Whose fault it is decides: `ToolError` (and a result with `error`) is the model's and goes back to it; a time-out, an
`InfraError` or any other exception is ours, is retried (unless the tool must not run twice) and then masks the rollout.
A tool runs in a task that nobody waits for longer than its time-out: one that hangs and ignores its cancellation harms
only its own rollout.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Coroutine, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ramet.config.schema import ToolConfig
from ramet.errors import ConfigError, InfraError, PluginError, ToolError
from ramet.output_checks import tool_problem
from ramet.plugin_code import defined_at, named, raised_at
from ramet.plugins import origin
from ramet.rollout.tools.arguments import check_arguments
from ramet.rollout.tools.stats import ToolStats, tool_metrics
from ramet.rollout.tools.text import fit
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
    metadata: Mapping[str, Any] = field(default_factory=dict)


class ToolRuntime:
    """All tools of one rollout worker."""

    def __init__(self, tools: Mapping[str, tuple[Tool, ToolConfig]], encoder: Encoder, watchdog: Watchdog) -> None:
        self._lanes = {name: ToolQueue(name, *pair, encoder, watchdog) for name, pair in tools.items()}

    @property
    def schemas(self) -> dict[str, ToolSchema]:
        return {name: lane.schema for name, lane in self._lanes.items()}

    async def run(self, call: ToolCall, *, ends_at: float | None = None) -> ToolOutcome:
        """Raises only what stops the run: `PluginError` and `ConfigError`.

        `ends_at`: when the rollout's deadline is, in the event loop's time. None: it has none.
        """
        return await self._lanes[call.name].run(call, ends_at)

    @property
    def tools(self) -> dict[str, tuple[Tool, float]]:
        """With the time-out of each, in seconds."""
        return {name: (lane.tool, lane.config.timeout_s) for name, lane in self._lanes.items()}

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


@dataclass(slots=True)
class _Flight:
    """One execution that several identical calls wait for."""

    task: asyncio.Task[ToolOutcome]
    waiters: int = 0


class _CallProgress:
    """What one call has done so far: the time that it spent waiting and running, and whether the tool was called."""

    def __init__(self, ends_at: float | None) -> None:
        self.ends_at = ends_at
        self.begun = time.perf_counter()
        self.run_s = 0.0
        self.may_have_run = False

    @property
    def wait_s(self) -> float:
        return max(0.0, time.perf_counter() - self.begun - self.run_s)


class ToolQueue:
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
        self._has_state = hasattr(tool, "forks")

    async def run(self, call: ToolCall, ends_at: float | None) -> ToolOutcome:
        self.stats.calls += 1
        try:
            check_arguments(self.schema, call.arguments)
        except ToolError as error:
            self.stats.errors += 1
            text, truncated = fit(str(error), self.config.max_result_tokens, self._encoder)
            return ToolOutcome(status=CallStatus.ERROR, text=text, truncated=truncated, raised=True)
        shared = self._share_key(call)
        outcome = await (self._execute(call, ends_at) if shared is None else self._join(shared, call))
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
            anyone = replace(call, task=None, environment=None)  # it may answer other tasks too
            flight = self._flights[key] = _Flight(self._spawn(self._execute(anyone, None)))
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

    async def _execute(self, call: ToolCall, ends_at: float | None) -> ToolOutcome:
        progress = _CallProgress(ends_at)
        attempts, end = 0, None
        while end is None:
            attempts += 1
            try:
                end = self._ended_well(await self._attempt(call, progress))
            except ToolError as error:
                text, truncated = fit(str(error), self.config.max_result_tokens, self._encoder)
                end = ToolOutcome(status=CallStatus.ERROR, text=text, truncated=truncated, raised=True)
            except InfraError as error:
                wait_s = self._asked_to_wait(error, progress)
                if wait_s is not None:
                    attempts -= 1
                    end = await self._wait_as_asked(wait_s, str(error), call, ends_at)
                elif self._is_final(error, attempts, progress):
                    end = ToolOutcome(status=CallStatus.INFRA, text=str(error))
                else:
                    await self._back_off(attempts, call)
        self.stats.wait_s.append(progress.wait_s)
        self.stats.run_s.append(progress.run_s)
        end.wait_s, end.run_s, end.attempts = progress.wait_s, progress.run_s, max(1, attempts)
        return end

    def _ended_well(self, result: ToolResult) -> ToolOutcome:
        text, truncated = fit(result.text, self.config.max_result_tokens, self._encoder)
        return ToolOutcome(
            status=CallStatus.ERROR if result.error else CallStatus.OK,
            text=text,
            truncated=truncated,
            cached=result.cached,
            metadata=_json(result.metadata, self.name),
        )

    def _must_not_run_again(self, progress: _CallProgress) -> bool:
        return progress.may_have_run and not self.schema.idempotent

    def _is_final(self, error: InfraError, attempts: int, progress: _CallProgress) -> bool:
        return attempts > self.config.retries or self._must_not_run_again(progress)

    def _asked_to_wait(self, error: InfraError, progress: _CallProgress) -> float | None:
        """Seconds after which the call may be made again; None if nobody asked for that, or it must not be."""
        wait_s = error.retry_after_s
        if wait_s is None:
            return None
        if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or math.isnan(wait_s):
            raise PluginError(
                f"tool {self.name!r} ({origin(self.tool)}) raised an InfraError with retry_after_s={wait_s!r}: give "
                f"seconds as a number{defined_at(self.tool)}"
            )
        if self._must_not_run_again(progress):
            return None
        return max(BACKOFF_S, wait_s)  # never at once: the service would be asked in a busy loop

    async def _wait_as_asked(
        self, wait_s: float, reason: str, call: ToolCall, ends_at: float | None
    ) -> ToolOutcome | None:
        """Outside the tool's slot and time-out. The outcome, if the rollout's deadline comes first."""
        if ends_at is not None and asyncio.get_running_loop().time() + wait_s > ends_at:
            text = f"{reason} (asked to wait {wait_s:g} s, which is longer than the rollout has)"
            return ToolOutcome(status=CallStatus.INFRA, text=text)
        self.stats.waits += 1
        self.stats.waits_s.append(wait_s)
        with self._watchdog.wait(f"wait that tool:{self.name} asked for, rollout {call.rollout}"):
            await asyncio.sleep(wait_s)
        return None

    async def _back_off(self, attempts: int, call: ToolCall) -> None:
        self.stats.retries += 1
        with self._watchdog.wait(f"retry of tool:{self.name} rollout {call.rollout}"):
            await asyncio.sleep(min(MAX_BACKOFF_S, BACKOFF_S * 2 ** (attempts - 1)))

    async def _attempt(self, call: ToolCall, progress: _CallProgress) -> ToolResult:
        if self._slots.locked():
            with self._watchdog.wait(f"slot of tool:{self.name} rollout {call.rollout}"):
                await self._slots.acquire()
        else:
            await self._slots.acquire()
        started = time.perf_counter()
        self.stats.executed += 1
        try:
            arguments = deepcopy(dict(call.arguments))  # a tool may change them; the record and a retry may not
            call = replace(call, arguments=arguments, deadline_s=self._left(progress.ends_at))
            with self._watchdog.wait(f"tool:{self.name} rollout {call.rollout}"):
                return self._checked(await self._within(self._call(call, progress), self.config.timeout_s))
        finally:
            self._slots.release()
            progress.run_s += time.perf_counter() - started

    def _left(self, ends_at: float | None) -> float:
        """Seconds that an attempt has that begins now."""
        if ends_at is None:
            return self.config.timeout_s
        return max(0.0, min(self.config.timeout_s, ends_at - asyncio.get_running_loop().time()))

    def _checked(self, result: object) -> ToolResult:
        problem = tool_problem(result)
        if problem is not None:
            raise PluginError(f"tool {self.name!r} ({origin(self.tool)}) {problem}{defined_at(self.tool)}")
        assert isinstance(result, ToolResult)
        return result

    async def _call(self, call: ToolCall, progress: _CallProgress) -> ToolResult:
        """Whatever the tool raises leaves here as one of the four errors."""
        try:
            progress.may_have_run = True
            return await self.tool(call)
        except (ToolError, InfraError, PluginError):
            raise
        except ConfigError as error:
            raise named(error, f"tool {self.name!r} ({origin(self.tool)})", f"tools.{self.name}") from error
        except (Exception, SystemExit) as error:
            logger.debug("tool %s raised", self.name, exc_info=True)
            raise InfraError(f"tool {self.name!r} raised {type(error).__name__}: {error}{raised_at(error)}") from error

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

    async def close(self) -> None:
        """End what still runs, then the tool itself."""
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


def _json(metadata: object, name: str) -> Mapping[str, Any]:
    """As the record on disk gives it back, and a copy, so that the tool may go on with its own."""
    problem = f"tool {name!r} returned metadata that is no JSON object"
    if not isinstance(metadata, Mapping):
        raise PluginError(f"{problem}: it is a {type(metadata).__name__}, not a mapping")
    if not metadata:
        return {}
    try:
        read: Mapping[str, Any] = json.loads(json.dumps(dict(metadata), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise PluginError(f"{problem}: {error}") from error
    return read
