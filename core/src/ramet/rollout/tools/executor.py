"""Runs one tool: a call gets a slot, a copy of its arguments and a time-out; what comes of it is an outcome.

A call runs in a task that is waited for no longer than its time-out: one that hangs and ignores its cancellation harms
only its own rollout. The text of an outcome is fit for the model: no control characters, and not more tokens than
allowed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Coroutine, Mapping
from contextvars import Context
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ramet.config.schema import ToolConfig
from ramet.errors import ConfigError, InfraError, PluginError, ToolError
from ramet.helpers import FunctionError
from ramet.output_checks import tool_problem
from ramet.plugin_code import defined_at, named, raised_at
from ramet.plugins import origin
from ramet.rollout.deadlines import DeadlineQueue
from ramet.rollout.stateful import is_defect
from ramet.rollout.tools.stats import ToolStats
from ramet.rollout.watchdog import Watchdog
from ramet.types import CallStatus, Tool, ToolCall, ToolResult

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder

logger = logging.getLogger(__name__)
Ended = asyncio.Future[None]
CLOSE_TIMEOUT_S = 10.0
UNCHANGEABLE = frozenset({str, int, float, bool, type(None)})  # nearly all arguments; they need no copy
CUT = "\n[... cut ...]\n"
CHARS_PER_TOKEN = 32  # no more characters than this per allowed token are ever tokenised
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class ToolDefect(InfraError):
    """A tool raised what is its own mistake: the rollout is masked, and a resume would meet it again."""


@dataclass(slots=True, kw_only=True)
class ToolOutcome:
    """How one call ended, whosever fault it was. `raised`: the tool raised `ToolError` instead of returning; `defect`:
    of an infrastructure failure, that it is a mistake of the tool's own code.
    """

    status: CallStatus
    text: str
    wait_s: float = 0.0
    run_s: float = 0.0
    attempts: int = 0
    cached: bool = False
    truncated: bool = False
    raised: bool = False
    defect: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)


class CallProgress:
    """What one call has done so far: the time that it spent waiting and running, and whether the tool was called."""

    def __init__(self, ends_at: float | None) -> None:
        self.ends_at = ends_at
        self.begun = time.perf_counter()
        self.run_s = 0.0
        self.may_have_run = False

    @property
    def wait_s(self) -> float:
        return max(0.0, time.perf_counter() - self.begun - self.run_s)


class ToolExecutor:
    """One tool with its slots and its time-out. `stats` counts since they were last taken."""

    def __init__(self, name: str, tool: Tool, config: ToolConfig, encoder: Encoder, watchdog: Watchdog) -> None:
        self.name = name
        self.tool = tool
        self.config = config
        self.stats = ToolStats()
        self._raised = set[str]()  # types of exceptions that were logged
        self._encoder = encoder
        self._watchdog = watchdog
        self._slots = asyncio.Semaphore(config.concurrency if tool.schema.concurrent else 1)
        self._running: dict[asyncio.Task[Any], Ended | None] = {}  # with what waits for it; the loop holds tasks weakly
        self._deadlines = DeadlineQueue(config.timeout_s, _set)
        self._context = Context()  # of a callback that needs none: asyncio would copy one for each call

    def take_stats(self) -> ToolStats:
        taken, self.stats = self.stats, ToolStats()
        return taken

    def outcome(self, result: ToolResult) -> ToolOutcome:
        text, truncated = fit(result.text, self.config.max_result_tokens, self._encoder)
        return ToolOutcome(
            status=CallStatus.ERROR if result.error else CallStatus.OK,
            text=text,
            truncated=truncated,
            cached=result.cached,
            metadata=_json(result.metadata, self.name),
        )

    def refused(self, error: ToolError) -> ToolOutcome:
        """The outcome of a call that raised `ToolError`, from the tool or from the check of its arguments."""
        if isinstance(error, FunctionError) and (cause := error.__cause__) is not None:
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
        text, truncated = fit(str(error), self.config.max_result_tokens, self._encoder)
        return ToolOutcome(status=CallStatus.ERROR, text=text, truncated=truncated, raised=True)

    async def attempt(self, call: ToolCall, progress: CallProgress) -> ToolResult:
        if self._slots.locked():
            with self._watchdog.wait(f"slot of tool:{self.name} rollout {call.rollout}"):
                await self._slots.acquire()
        else:
            await self._slots.acquire()
        started = time.perf_counter()
        self.stats.executed += 1
        try:
            call = self._own_call(call, self._left(progress.ends_at))
            with self._watchdog.wait(f"tool:{self.name} rollout {call.rollout}"):
                return self._checked(await self._within(self._call(call, progress), self._deadlines))
        finally:
            self._slots.release()
            progress.run_s += time.perf_counter() - started

    def _own_call(self, call: ToolCall, deadline_s: float) -> ToolCall:
        """With a copy of the arguments, since a tool may change its own; the record and a retry must not see that."""
        return ToolCall(
            name=call.name,
            arguments={name: _copied(value) for name, value in call.arguments.items()},
            rollout=call.rollout,
            turn=call.turn,
            task=call.task,
            deadline_s=deadline_s,
            state=call.state,
            environment=call.environment,
        )

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

    async def _call(self, call: ToolCall, progress: CallProgress) -> ToolResult:
        """Whatever the tool raises is turned into one of the four errors."""
        try:
            progress.may_have_run = True
            return await self.tool(call)
        except (ToolError, InfraError, PluginError):
            raise
        except ConfigError as error:
            raise named(error, f"tool {self.name!r} ({origin(self.tool)})", f"tools.{self.name}") from error
        except (Exception, SystemExit) as error:
            logger.debug("tool %s raised", self.name, exc_info=True)
            who = f" ({origin(self.tool)})" if is_defect(error) else ""
            raise (ToolDefect if who else InfraError)(
                f"tool {self.name!r}{who} raised {type(error).__name__}: {error}{raised_at(error)}; if the model "
                "caused it, raise ramet.ToolError instead"
            ) from error

    async def _within(self, work: Coroutine[Any, Any, Any], deadlines: DeadlineQueue[Ended]) -> Any:
        """Wait for `work` until its deadline and no longer, even if it ignores its cancellation."""
        task = self.spawn(work)
        ended = self._running[task] = asyncio.get_running_loop().create_future()
        deadlines.add(ended)
        try:
            await ended
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            deadlines.discard(ended)
        if not task.done():
            task.cancel()
            raise InfraError(f"tool {self.name!r} did not return within {deadlines.seconds:g} s")
        if task.cancelled():
            raise InfraError(f"tool {self.name!r} cancelled itself")
        return task.result()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.create_task(work)
        self._running[task] = None
        task.add_done_callback(self._ended, context=self._context)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if (ended := self._running.pop(task)) is not None:
            _set(ended)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not report an abandoned call

    async def close(self) -> None:
        """End what still runs, then the tool itself."""
        for task in list(self._running):
            task.cancel()
        if hasattr(self.tool, "aclose"):
            await self._quietly(without_exit(self.tool.aclose()), f"close of tool:{self.name}")

    async def _quietly(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Cleaning up must not change what a rollout was: errors are logged."""
        try:
            with self._watchdog.wait(name):
                await self._within(work, DeadlineQueue(CLOSE_TIMEOUT_S, _set))
        except Exception as error:
            logger.warning("%s failed: %s: %s", name, type(error).__name__, error)


async def without_exit(work: Awaitable[None]) -> None:
    """asyncio would end the run with a task's SystemExit."""
    try:
        await work
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error}") from error


def _set(ended: Ended) -> None:
    if not ended.done():
        ended.set_result(None)


def _copied(value: Any) -> Any:
    return value if type(value) in UNCHANGEABLE else deepcopy(value)


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


def fit(text: str, max_tokens: int, encoder: Encoder) -> tuple[str, bool]:
    """The text as the model may see it, and whether it was cut.

    Three quarters of what is kept come from the head and one from the tail: errors are at the end.
    """
    window = max_tokens * CHARS_PER_TOKEN
    if len(text) > window:
        return _cut(visible(text[:window]), visible(text[-window:]), max_tokens, encoder), True
    shown = visible(text)
    if len(encoder.untrusted(shown)) <= max_tokens:
        return shown, False
    return _cut(shown, shown, max_tokens, encoder), True


def visible(text: str) -> str:
    """Line ends become newlines; other control characters and lone surrogates are written out, as in `\\x1b`."""
    if text.replace("\n", " ").isprintable():  # nearly always, and much faster than the expression
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape", "backslashreplace").decode("ascii"), text)


def _cut(head: str, tail: str, max_tokens: int, encoder: Encoder) -> str:
    head_ids, tail_ids = encoder.untrusted(head), encoder.untrusted(tail)
    room = max(0, max_tokens - len(encoder.untrusted(CUT)))
    while True:
        n_tail = room // 4
        first = encoder.decode(head_ids[: room - n_tail]).rstrip("\ufffd")
        last = encoder.decode(tail_ids[len(tail_ids) - n_tail :]).lstrip("\ufffd")
        joined = f"{first}{CUT}{last}"
        excess = len(encoder.untrusted(joined)) - max_tokens  # cut text may tokenise to more than it was cut from
        if excess <= 0 or room == 0:
            return joined
        room = max(0, room - excess)
