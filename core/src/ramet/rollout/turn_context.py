"""What a rollout step may do in one turn: generate once, and call tools. The core keeps the token ids."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from ramet.engines.protocol import Completion, FinishReason, FirstReport, Request
from ramet.errors import ConfigError, PluginError
from ramet.output_checks import stop_problem
from ramet.plugin_code import named
from ramet.rollout.completion import append_completion, completion_problem, ended_at_stop
from ramet.rollout.faults import RolloutFailed
from ramet.rollout.group_context import GroupContext
from ramet.rollout.states import States
from ramet.rollout.tools.runner import CallEnd, refused_call
from ramet.rollout.tools.text import visible
from ramet.rollout.tree import LiveRollout
from ramet.types import (
    CallStatus,
    Fault,
    Generation,
    Insert,
    Message,
    RolloutState,
    StopReason,
    Task,
    ToolCall,
    ToolRecord,
    ToolResult,
    ToolSchema,
)

FirstTokensHook = Callable[[LiveRollout, int, tuple[float, ...]], None]


class TurnContext:
    """`StepContext` for one turn of one rollout. `fault` keeps what failed, even if the step catches the error."""

    def __init__(
        self,
        live: LiveRollout,
        context: GroupContext,
        on_first: FirstTokensHook,
        step: str,
        *,
        states: States | None = None,
        environment: Any = None,
    ) -> None:
        self.live = live
        self.context = context
        self.environment = environment
        self.fault: Fault | None = None
        self._on_first = on_first
        self._step = step  # for messages
        self._states = states
        self._asked = False
        self._reported = False
        self._earlier_calls = tuple(live.tool_calls)
        self._begun: list[str] = []  # the tools of this turn's calls, in the order in which they were made
        self._records: dict[int, ToolRecord] = {}  # of this turn's calls, by the order in which they were made
        self._calling: set[asyncio.Task[Any]] = set()  # tasks that wait for a call of this turn
        self._in_order: dict[str, asyncio.Lock] = {}  # of tools that hold states
        self._is_over = False
        self._quiet: asyncio.Event | None = None  # set once no call is running, if the end waits for that

    @property
    def tools(self) -> Sequence[ToolSchema]:
        return self.context.schemas

    @property
    def max_tool_calls(self) -> int:
        return self.context.max_tool_calls

    @property
    def turns_left(self) -> int:
        return self.context.max_turns - self.live.turn

    @property
    def tokens_left(self) -> int:
        return max(0, self.context.room(self.live))

    def calls_left(self, tool: str) -> int:
        known = any(schema.name == tool for schema in self.context.schemas)
        if not known:
            return 0
        left = self.max_tool_calls - len(self._earlier_calls) - len(self._begun)
        limit = self.context.plan.tool_calls.get(tool)
        return left if limit is None else min(left, max(0, limit - self._n_begun(tool)))

    def _n_begun(self, tool: str) -> int:
        """Calls of this tool, those of this turn included."""
        return sum([call.name == tool for call in self._earlier_calls]) + self._begun.count(tool)

    def render(self, messages: Sequence[Message]) -> Sequence[Insert]:
        ids = self.live.token_ids
        try:
            return self.context.encoder.suffix(messages, after=ids[-1])
        except ValueError as error:
            raise PluginError(f"rollout step {self._step} called render wrongly: {error}") from error

    async def generate(self, *, stop: Sequence[str] = ()) -> Generation:
        if self._asked:
            raise PluginError(f"rollout step {self._step} called generate twice in one turn; allowed: once")
        if (problem := stop_problem(stop)) is not None:
            raise PluginError(f"rollout step {self._step} {problem}")
        self._asked = True
        request = self.context.request(self.live, tuple(stop))
        started = time.perf_counter()
        completion = await self._complete(request)
        if self.live.sampled_in_turn:
            shared = "".join(segment.text for segment in self.live.sampled_in_turn)
            completion = ended_at_stop(completion, shared, request.sampling.stop, self.context.encoder)
        seconds = time.perf_counter() - started
        self.live.add_stat("generate_s", seconds)
        self.context.counts.tokens += len(completion.token_ids)
        self._report(completion.entropies)
        end_if_pruned(self.live)
        generation = self.live.generations[self.live.turn] = append_completion(
            self.live, completion, self.context.encoder
        )
        if self.context.observer is not None:
            n_tokens = len(completion.token_ids)
            self.context.observer.sampled(self.live.key.path, self.live.turn, generation, n_tokens, seconds)
        return generation

    async def _complete(self, request: Request) -> Completion:
        def on_first(report: FirstReport) -> None:
            self._report(report.entropies)

        try:
            with self.context.watchdog.wait(f"generation of rollout {self.live.key.text}, turn {self.live.turn}"):
                completion = await self.context.engine.generate(request, on_first)
        except asyncio.CancelledError:
            self.context.engine.abort(request.id)
            raise
        except ConfigError as error:
            raise named(error, f"engine {self.context.engine.info.name!r}", "engine") from error
        except PluginError:
            raise
        except Exception as error:  # whatever an engine raises, one request failed and the others go on
            raise self._failed(RolloutFailed("engine", f"{type(error).__name__}: {error}")) from error
        if completion.finish is FinishReason.ABORT:
            raise self._failed(RolloutFailed("engine", "the request was aborted"))
        problem = completion_problem(completion, self.context.versions)
        if problem is not None:
            text = f"request {request.id!r} was answered with what cannot be used: {problem}"
            raise self._failed(RolloutFailed("engine", text))
        return completion

    def _report(self, entropies: Sequence[float]) -> None:
        """Once a turn, at the engine's first report or, if there was none, at the end; not for what ended before."""
        if self._reported or self.live.finished:
            return
        self._reported = True
        k = self.context.first_tokens
        shared = [entropy for segment in self.live.sampled_in_turn for entropy in segment.entropies or ()]
        first = (*shared[:k], *entropies[:k])[:k] if entropies else ()
        self._on_first(self.live, self.live.turn, first)

    async def call_tool(self, call: ToolCall) -> ToolResult:
        number, task = self._begin_call(call.name), asyncio.current_task()
        assert task is not None
        self.context.counts.in_tools += not self._calling
        self._calling.add(task)
        try:
            if self._states is None or call.name not in self._states:
                return await self._call(number, call, None)
            # One after the other, in their order: what a state becomes must not depend on which call is faster.
            async with self._in_order.setdefault(self._states.owner(call.name), asyncio.Lock()):
                return await self._call(number, call, await self._state(self._states, call.name))
        finally:
            self._calling.discard(task)
            self.context.counts.in_tools -= not self._calling
            if self._quiet is not None and not self._calling:
                self._quiet.set()

    def _begin_call(self, tool: str) -> int:
        """The call's number in this turn; counted before it is waited for: a step may make several calls at once."""
        if self._is_over:
            raise PluginError(f"rollout step {self._step} made a tool call after its turn had ended")
        number = len(self._begun)
        if len(self._earlier_calls) + number >= self.max_tool_calls:
            raise PluginError(
                f"rollout step {self._step} made more tool calls than the {self.max_tool_calls} allowed; it must "
                "stop the rollout with StopReason.CALL_LIMIT"
            )
        self._begun.append(tool)
        return number

    async def end(self, *, cancel: bool = False) -> None:
        """Wait for calls that the step left running (`gather` does when one of its calls raises).

        They belong to this turn: later ones would lose their records, and their states would change under a fork.
        """
        self._is_over = True
        if not self._calling:
            return
        self._quiet = asyncio.Event()
        for task in self._calling if cancel else ():
            task.cancel()
        await self._quiet.wait()

    async def _call(self, number: int, call: ToolCall, state: Any) -> ToolResult:
        live = self.live
        call = ToolCall(
            name=call.name,
            arguments=call.arguments,
            rollout=live.key.text,
            turn=live.turn,
            task=self.context.task,
            state=state,
            environment=self.environment,
        )
        observer = self.context.observer
        if observer is not None:
            observer.calling(live.key.path, call)
        record, error = self._refused(call) or await self.context.tools[call.name].run(call, ends_at=live.ends_at)
        self._records[number] = record
        if observer is not None:
            observer.called(live.key.path, record)
        live.tool_calls = [*self._earlier_calls, *(self._records[one] for one in sorted(self._records))]
        live.add_stat("tool_s", record.run_s)
        live.add_stat("tool_wait_s", record.wait_s)
        if isinstance(error, RolloutFailed):
            raise self._failed(error)
        if error is not None:
            raise error
        metadata = deepcopy(record.metadata) if record.metadata else {}  # what the step is given is its own
        is_error = record.status is CallStatus.ERROR
        return ToolResult(text=record.text, error=is_error, cached=record.cached, metadata=metadata)

    async def _state(self, states: States, tool: str) -> Any:
        try:
            return await states.use(self.live, tool, self.environment)
        except RolloutFailed as error:
            raise self._failed(error) from error.__cause__

    def _refused(self, call: ToolCall) -> CallEnd | None:
        """The end of a call that no tool gets to see; None if its tool may run."""
        known = [schema.name for schema in self.context.schemas]
        limit = self.context.plan.tool_calls.get(call.name)
        if call.name not in known:
            text = f"There is no tool {visible(call.name[:80])}. Tools: {', '.join(known) or 'none'}."
        elif limit is not None and self._n_begun(call.name) > limit:
            text = f"The limit of {limit} {call.name} calls is used up."
        else:
            return None
        return refused_call(call, text)

    def _failed(self, error: RolloutFailed) -> RolloutFailed:
        """Raised, it ends the step's turn; in `fault`, it is there for the runner even if the step catches it."""
        self.fault = error.fault
        return error


def end_if_pruned(live: LiveRollout) -> None:
    """Raise `CancelledError` if the scheduler stopped the rollout: cancelled by a decision on what it reports itself,
    its task goes on to its next wait, and what it does until then never happened.
    """
    if live.stop is StopReason.PRUNED:
        raise asyncio.CancelledError


def state_of(live: LiveRollout, task: Task, environment: Any) -> RolloutState:
    """What the rollout step may know of a rollout at the beginning of its turn."""
    return RolloutState(
        task=task,
        rollout=live.key.path,
        turn=live.turn,
        response=live.response[: len(live.response) - sum(len(s.text) for s in live.sampled_in_turn)],
        n_tool_calls=len(live.tool_calls),
        environment=environment,
    )
