"""Runs tools for rollouts, so that a tool need not know of time-outs, retries, limits, sharing or metrics.

Whose fault it is decides: `ToolError` (and a result with `error`) is the model's and goes back to it; a time-out, an
`InfraError` or any other exception is ours, is retried (unless the tool must not run twice) and then masks the rollout.
Arguments that do not fit the tool's schema are the model's mistake too; of JSON schema, required and known names, types
and enumerations are checked.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ramet.config.schema import ToolConfig
from ramet.errors import InfraError, PluginError, ToolError
from ramet.io.json_values import MAX_NESTING, json_fault, too_deep
from ramet.plugin_code import defined_at
from ramet.plugins import origin
from ramet.rollout.tools.executor import CallProgress, ToolDefect, ToolExecutor, ToolOutcome
from ramet.rollout.tools.stats import ToolStats, tool_metrics
from ramet.rollout.watchdog import Watchdog
from ramet.types import CallStatus, Tool, ToolCall, ToolSchema

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder

logger = logging.getLogger(__name__)
BACKOFF_S = 0.2  # before the first retry; doubles with each, up to MAX_BACKOFF_S
MAX_BACKOFF_S = 5.0
REPORTED_WAIT_S, REPORT_EVERY_S = 5.0, 30.0  # a wait that a tool asked for is reported from here on, once in so long
_IS: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "array": lambda v: isinstance(v, list | tuple),
    "object": lambda v: isinstance(v, Mapping),
    "null": lambda v: v is None,
}


class ToolRuntime:
    """All tools of one rollout worker."""

    def __init__(self, tools: Mapping[str, tuple[Tool, ToolConfig]], encoder: Encoder, watchdog: Watchdog) -> None:
        self._queues = {name: ToolQueue(name, *pair, encoder, watchdog) for name, pair in tools.items()}

    @property
    def schemas(self) -> dict[str, ToolSchema]:
        return {name: queue.schema for name, queue in self._queues.items()}

    def run(self, call: ToolCall, *, ends_at: float | None = None) -> Coroutine[Any, Any, ToolOutcome]:
        """Raises only what stops the run: `PluginError` and `ConfigError`.

        `ends_at`: when the rollout's deadline is, in the event loop's time. None: it has none.
        """
        return self._queues[call.name].run(call, ends_at)

    @property
    def tools(self) -> dict[str, tuple[Tool, float]]:
        """With the time-out of each, in seconds."""
        return {name: (queue.tool, queue.config.timeout_s) for name, queue in self._queues.items()}

    @property
    def executors(self) -> dict[str, ToolExecutor]:
        """Of each tool: what runs a single attempt, without checks, sharing and retries."""
        return {name: queue.executor for name, queue in self._queues.items()}

    def take_stats(self) -> dict[str, ToolStats]:
        """Of each tool, since the last call."""
        return {name: queue.executor.take_stats() for name, queue in self._queues.items()}

    def metrics(self) -> dict[str, float]:
        """`tool/NAME/…`, since the last call."""
        return tool_metrics(self.take_stats())

    async def close(self) -> None:
        for queue in self._queues.values():
            await queue.executor.close()


@dataclass(slots=True)
class _Flight:
    """One execution that several identical calls wait for."""

    task: asyncio.Task[ToolOutcome]
    waiters: int = 0


class ToolQueue:
    """The calls of one tool: their arguments are checked, identical ones share a run, failed ones are tried again."""

    def __init__(self, name: str, tool: Tool, config: ToolConfig, encoder: Encoder, watchdog: Watchdog) -> None:
        self.name = name
        self.tool = tool
        self.config = config
        self.schema = replace(tool.schema, name=name)
        self.executor = ToolExecutor(name, tool, config, encoder, watchdog)
        self._watchdog = watchdog
        self._flights: dict[str, _Flight] = {}
        self._has_state = hasattr(tool, "forks") or hasattr(tool, "state_owner")
        self._reports_again_at = 0.0

    @property
    def stats(self) -> ToolStats:
        return self.executor.stats

    async def run(self, call: ToolCall, ends_at: float | None) -> ToolOutcome:
        self.stats.calls += 1
        try:
            check_arguments(self.schema, call.arguments)
        except ToolError as error:
            self.stats.errors += 1
            return self.executor.refused(error)
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
            flight = self._flights[key] = _Flight(self.executor.spawn(self._execute(anyone, None)))
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
        progress = CallProgress(ends_at)
        attempts, end = 0, None
        while end is None:
            attempts += 1
            try:
                end = self.executor.outcome(await self.executor.attempt(call, progress))
            except ToolError as error:
                end = self.executor.refused(error)
            except InfraError as error:
                wait_s = self._asked_to_wait(error, progress)
                if wait_s is not None:
                    attempts -= 1
                    end = await self._wait_as_asked(wait_s, str(error), call, ends_at)
                elif self._is_final(error, attempts, progress):
                    end = ToolOutcome(status=CallStatus.INFRA, text=str(error), defect=isinstance(error, ToolDefect))
                else:
                    await self._back_off(attempts, call)
        self.stats.wait_s.append(progress.wait_s)
        self.stats.run_s.append(progress.run_s)
        end.wait_s, end.run_s, end.attempts = progress.wait_s, progress.run_s, max(1, attempts)
        return end

    def _must_not_run_again(self, progress: CallProgress) -> bool:
        return progress.may_have_run and not self.schema.idempotent

    def _is_final(self, error: InfraError, attempts: int, progress: CallProgress) -> bool:
        return attempts > self.config.retries or self._must_not_run_again(progress)

    def _asked_to_wait(self, error: InfraError, progress: CallProgress) -> float | None:
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
        self._report_wait(wait_s, reason)
        with self._watchdog.wait(f"wait that tool:{self.name} asked for ({reason:.200}), rollout {call.rollout}"):
            await asyncio.sleep(wait_s)
        return None

    def _report_wait(self, wait_s: float, reason: str) -> None:
        """On the console, not for every call that waits: a service that is down makes all of them wait."""
        now = asyncio.get_running_loop().time()
        if wait_s >= REPORTED_WAIT_S and now >= self._reports_again_at:
            self._reports_again_at = now + REPORT_EVERY_S
            logger.warning("calls of tool %r wait (this one for %.0f s): %s", self.name, wait_s, reason)

    async def _back_off(self, attempts: int, call: ToolCall) -> None:
        self.stats.retries += 1
        with self._watchdog.wait(f"retry of tool:{self.name} rollout {call.rollout}"):
            await asyncio.sleep(min(MAX_BACKOFF_S, BACKOFF_S * 2 ** (attempts - 1)))


def check_arguments(schema: ToolSchema, arguments: Mapping[str, Any]) -> None:
    """Raise `ToolError` with everything that is wrong. A null for an optional argument counts as not given."""
    if too_deep(arguments):
        raise ToolError(f"{schema.name}: the arguments are nested more than {MAX_NESTING} levels deep")
    if (fault := json_fault(dict(arguments))) is not None:
        raise ToolError(f"{schema.name}: the arguments hold {fault}")
    properties = schema.parameters.get("properties", {})
    required = schema.parameters.get("required", [])
    problems = [f"{name} is missing" for name in required if name not in arguments]
    for name, value in arguments.items():
        if name in properties:
            problems += [] if value is None and name not in required else _problems(name, value, properties[name])
        elif not schema.parameters.get("additionalProperties", "properties" not in schema.parameters):
            problems.append(f"there is no {name} (known: {', '.join(properties) or 'none'})")
    if problems:
        raise ToolError(f"{schema.name}: {'; '.join(problems)}")


def _problems(name: str, value: Any, spec: Mapping[str, Any]) -> list[str]:
    found = spec.get("type")
    types = [found] if isinstance(found, str) else list(found or [])
    if types and all(one in _IS for one in types) and not any(_IS[one](value) for one in types):
        return [f"{name} must be of type {' or '.join(types)}, got {_short(value)}"]
    if "enum" in spec and value not in spec["enum"]:
        return [f"{name} must be one of {', '.join(map(repr, spec['enum']))}, got {_short(value)}"]
    return []


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
