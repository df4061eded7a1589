"""Runs one tool for rollouts, so that a tool need not know of time-outs, retries, limits, sharing or metrics.

The model gets its own mistakes back: `ToolError`, a result with `error`, and arguments that do not fit the tool's
schema. A time-out, an `InfraError` or any other exception is an infrastructure failure. The call is retried (unless the
tool must not run twice); then the rollout is masked.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Coroutine, Mapping
from copy import copy, deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ramet.config.schema import ToolConfig
from ramet.errors import ConfigError, InfraError, PluginError, ToolError
from ramet.helpers import FunctionError, SingleFlight
from ramet.helpers.arguments import argument_problem
from ramet.plugins import origin
from ramet.plugins.output_checks import tool_problem
from ramet.plugins.plugin_code import defined_at, named, raised_at
from ramet.rollout.faults import RolloutFailed, is_defect
from ramet.rollout.tools.stats import ToolStats
from ramet.rollout.tools.text import fit
from ramet.rollout.watchdog import Watchdog, close_quietly
from ramet.types import CallStatus, Tool, ToolCall, ToolRecord, ToolResult

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder

logger = logging.getLogger(__name__)
BACKOFF_S = 0.2  # before the first retry; doubles with each, up to MAX_BACKOFF_S
MAX_BACKOFF_S = 5.0
REPORTED_WAIT_S, REPORT_EVERY_S = 5.0, 30.0  # a wait that a tool asked for is reported from here on, once in so long
UNCHANGEABLE = frozenset({str, int, float, bool, type(None)})  # nearly all arguments; they need no copy


class CallEnd(NamedTuple):
    """How a call ended: the record that is kept, and what its caller raises, if anything."""

    record: ToolRecord
    error: ToolError | RolloutFailed | None


def refused_call(call: ToolCall, text: str) -> CallEnd:
    """The end of a call that no tool gets to see: `text` says why."""
    record = ToolRecord(
        turn=call.turn,
        name=call.name,
        arguments=dict(call.arguments),
        status=CallStatus.ERROR,
        text=text,
        wait_s=0.0,
        run_s=0.0,
        attempts=0,
    )
    return CallEnd(record, ToolError(text))


class CallTimes:
    """How long a call has waited and run so far. `ends_at`: the rollout's deadline, in the event loop's time."""

    def __init__(self, ends_at: float | None) -> None:
        self.ends_at = ends_at
        self.begun = time.perf_counter()
        self.run_s = 0.0

    @property
    def wait_s(self) -> float:
        return max(0.0, time.perf_counter() - self.begun - self.run_s)


class ToolRunner:
    """One tool with its slots and its time-out. `stats` counts since they were last taken."""

    def __init__(self, name: str, tool: Tool, config: ToolConfig, encoder: Encoder, watchdog: Watchdog) -> None:
        self.name = name
        self.tool = tool
        self.config = config
        self.schema = replace(tool.schema, name=name)
        self.stats = ToolStats()
        self._encoder = encoder
        self._watchdog = watchdog
        self._slots = asyncio.Semaphore(config.concurrency if tool.schema.concurrent else 1)
        self._running = set[asyncio.Task[Any]]()  # the loop has only weak references to tasks
        self._flights = SingleFlight[CallEnd]()
        has_state = hasattr(tool, "forks") or hasattr(tool, "state_owner")
        self._shares = self.schema.deterministic and not has_state
        self._raised = set[str]()  # types of exceptions that were logged
        self._reports_again_at = 0.0

    def run(self, call: ToolCall, *, ends_at: float | None = None) -> Coroutine[Any, Any, CallEnd]:
        """Check, share, run and try again. Raises only what stops the run: `PluginError` and `ConfigError`.

        `ends_at`: when the rollout's deadline is, in the event loop's time. None: it has none.
        """
        self.stats.calls += 1
        problem = argument_problem(self.schema, call.arguments)
        if problem is None and self._shares:
            return self._join(call)
        return self._execute(call, ends_at, problem)

    async def _join(self, call: ToolCall) -> CallEnd:
        """Share the execution of an equal call. It may answer other tasks too, so it has no task and no deadline."""
        key = json.dumps(call.arguments, sort_keys=True, default=repr)
        joined, anyone = key in self._flights, replace(call, task=None, environment=None)
        self.stats.shared += joined
        end = await self._flights.run(key, lambda: self._spawn(self._execute(anyone, None)))
        if not joined:
            return end
        record = replace(end.record, turn=call.turn, arguments=dict(call.arguments), cached=True)
        self._count(record)
        return CallEnd(record, copy(end.error))

    async def _execute(self, call: ToolCall, ends_at: float | None, problem: str | None = None) -> CallEnd:
        """Run until the tool answers, refuses, or may not be tried again. `problem`: why it is not run at all."""
        times, attempts = CallTimes(ends_at), 0
        end: ToolResult | ToolError | RolloutFailed | None = None if problem is None else ToolError(problem)
        while end is None:
            attempts += 1
            try:
                end = await self.attempt(call, times)
            except ToolError as error:
                end = error
            except InfraError as error:
                wait_s = self._asked_to_wait(error)
                if wait_s is not None:
                    attempts -= 1
                    end = await self._wait_as_asked(wait_s, str(error), call, ends_at)
                elif attempts > self.config.retries or not self.schema.idempotent:
                    end = error if isinstance(error, RolloutFailed) else self._failed(str(error))
                else:
                    await self._back_off(attempts, call)
        if problem is None:
            attempts = max(1, attempts)
            self.stats.wait_s.append(times.wait_s)
            self.stats.run_s.append(times.run_s)
        return self._end(call, end, times, attempts)

    def _end(
        self, call: ToolCall, end: ToolResult | ToolError | RolloutFailed, times: CallTimes, attempts: int
    ) -> CallEnd:
        """The record of what came of it. The model sees a text that fits; a failure's is for people."""
        most, truncated = self.config.max_result_tokens, False
        if isinstance(end, RolloutFailed):
            status, text = CallStatus.INFRA, end.fault.message
        elif isinstance(end, ToolResult):
            status = CallStatus.ERROR if end.error else CallStatus.OK
            text, truncated = fit(end.text, most, self._encoder)
        else:
            self._note_exception(end)
            status = CallStatus.ERROR
            text, truncated = fit(str(end), most, self._encoder)
            end = ToolError(text)
        record = ToolRecord(
            turn=call.turn,
            name=call.name,
            arguments=dict(call.arguments),
            status=status,
            text=text,
            wait_s=times.wait_s if attempts else 0.0,
            run_s=times.run_s,
            attempts=attempts,
            cached=isinstance(end, ToolResult) and end.cached,
            truncated=truncated,
            metadata=_json(end.metadata, self.name) if isinstance(end, ToolResult) else {},
        )
        self._count(record)
        return CallEnd(record, None if isinstance(end, ToolResult) else end)

    def _count(self, record: ToolRecord) -> None:
        self.stats.errors += record.status is CallStatus.ERROR
        self.stats.infra += record.status is CallStatus.INFRA
        self.stats.truncated += record.truncated

    def _note_exception(self, error: ToolError) -> None:
        """Count what a function raised, and log the first of each type."""
        if not isinstance(error, FunctionError) or (cause := error.__cause__) is None:
            return
        kind = type(cause).__name__
        self.stats.exceptions[kind] += 1
        if kind not in self._raised:
            self._raised.add(kind)
            logger.warning(
                "tool %r raised %s: %.200s%s. Its text goes to the model; it may be a bug of the tool. More of "
                "these are only counted, as tool/%s/exceptions/%s",
                *(self.name, kind, cause, raised_at(cause), self.name, kind),
                exc_info=cause,
            )

    async def attempt(self, call: ToolCall, times: CallTimes) -> ToolResult:
        """Call the tool once: in a slot, and in a task that is waited for no longer than its time-out, so that one that
        hangs and ignores its cancellation harms only its own rollout. Raises one of the four errors.
        """
        if self._slots.locked():
            with self._watchdog.wait(f"slot of tool:{self.name} rollout {call.rollout}"):
                await self._slots.acquire()
        else:
            await self._slots.acquire()
        started = time.perf_counter()
        self.stats.executed += 1
        task: asyncio.Task[ToolResult] | None = None
        try:
            task = self._spawn(self._call(self._own_call(call, times.ends_at)))
            with self._watchdog.wait(f"tool:{self.name} rollout {call.rollout}"):
                await asyncio.wait({task}, timeout=self.config.timeout_s)
            if not task.done():
                raise self._failed(f"tool {self.name!r} did not return within {self.config.timeout_s:g} s")
            if task.cancelled():
                raise self._failed(f"tool {self.name!r} cancelled itself")
            return task.result()
        finally:
            if task is not None:
                task.cancel()  # of what runs still
            self._slots.release()
            times.run_s += time.perf_counter() - started

    def _own_call(self, call: ToolCall, ends_at: float | None) -> ToolCall:
        """Copy the call with its arguments: a tool may change its own, which record and retry must not see."""
        left_s = math.inf if ends_at is None else ends_at - asyncio.get_running_loop().time()
        arguments = {
            name: value if type(value) in UNCHANGEABLE else deepcopy(value) for name, value in call.arguments.items()
        }
        return ToolCall(  # `replace` takes three times as long, here and in `RolloutTurn.call_tool`
            name=call.name,
            arguments=arguments,
            rollout=call.rollout,
            turn=call.turn,
            task=call.task,
            deadline_s=max(0.0, min(self.config.timeout_s, left_s)),
            state=call.state,
            environment=call.environment,
        )

    async def _call(self, call: ToolCall) -> ToolResult:
        """Call the tool and turn its exceptions into one of the four errors."""
        try:
            result: object = await self.tool(call)
        except (ToolError, InfraError, PluginError):
            raise
        except ConfigError as error:
            raise named(error, f"tool {self.name!r} ({origin(self.tool)})", f"tools.{self.name}") from error
        except (Exception, SystemExit) as error:  # asyncio would end the run with a task's SystemExit
            logger.debug("tool %s raised", self.name, exc_info=True)
            who = f" ({origin(self.tool)})" if (defect := is_defect(error)) else ""
            raise self._failed(
                f"tool {self.name!r}{who} raised {type(error).__name__}: {error}{raised_at(error)}; if the model "
                "caused it, raise ramet.ToolError instead",
                defect=defect,
            ) from error
        if (problem := tool_problem(result)) is not None:
            raise PluginError(f"tool {self.name!r} ({origin(self.tool)}) {problem}{defined_at(self.tool)}")
        assert isinstance(result, ToolResult)
        return result

    def _failed(self, message: str, *, defect: bool = False) -> RolloutFailed:
        return RolloutFailed(f"tool:{self.name}", message, defect=defect)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not report an abandoned call

    def _asked_to_wait(self, error: InfraError) -> float | None:
        """Seconds after which the call may be made again; None if the tool did not ask, or must not run twice."""
        wait_s = error.retry_after_s
        if wait_s is None:
            return None
        if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or math.isnan(wait_s):
            raise PluginError(
                f"tool {self.name!r} ({origin(self.tool)}) raised an InfraError with retry_after_s={wait_s!r}: give "
                f"seconds as a number{defined_at(self.tool)}"
            )
        if not self.schema.idempotent:
            return None
        return max(BACKOFF_S, wait_s)  # never at once: the service would be asked in a busy loop

    async def _wait_as_asked(
        self, wait_s: float, reason: str, call: ToolCall, ends_at: float | None
    ) -> RolloutFailed | None:
        """Wait outside the tool's slot and time-out. Returns the failure if the rollout's deadline comes first."""
        if ends_at is not None and asyncio.get_running_loop().time() + wait_s > ends_at:
            return self._failed(f"{reason} (asked to wait {wait_s:g} s, which is longer than the rollout has)")
        self.stats.waits += 1
        self.stats.waits_s.append(wait_s)
        self._report_wait(wait_s, reason)
        with self._watchdog.wait(f"wait that tool:{self.name} asked for ({reason:.200}), rollout {call.rollout}"):
            await asyncio.sleep(wait_s)
        return None

    def _report_wait(self, wait_s: float, reason: str) -> None:
        """Report on the console, not for every call that waits: a service that is down makes all of them wait."""
        now = asyncio.get_running_loop().time()
        if wait_s >= REPORTED_WAIT_S and now >= self._reports_again_at:
            self._reports_again_at = now + REPORT_EVERY_S
            logger.warning("calls of tool %r wait (this one for %.0f s): %s", self.name, wait_s, reason)

    async def _back_off(self, attempts: int, call: ToolCall) -> None:
        self.stats.retries += 1
        with self._watchdog.wait(f"retry of tool:{self.name} rollout {call.rollout}"):
            await asyncio.sleep(min(MAX_BACKOFF_S, BACKOFF_S * 2 ** (attempts - 1)))

    def take_stats(self) -> ToolStats:
        taken, self.stats = self.stats, ToolStats()
        return taken

    async def close(self) -> None:
        """End what still runs, then the tool itself."""
        for task in list(self._running):
            task.cancel()
        if hasattr(self.tool, "aclose"):
            await close_quietly(self.tool.aclose(), f"close of tool:{self.name}", self._watchdog)


def _json(metadata: object, name: str) -> Mapping[str, Any]:
    """Copy it as the record on disk gives it back, so that the tool may continue with its own."""
    problem = f"tool {name!r} returned metadata that is not a JSON object"
    if not isinstance(metadata, Mapping):
        raise PluginError(f"{problem}: it is a {type(metadata).__name__}, not a mapping")
    if not metadata:
        return {}
    try:
        read: Mapping[str, Any] = json.loads(json.dumps(dict(metadata), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise PluginError(f"{problem}: {error}") from error
    return read
