"""One turn of one rollout: a rollout step may generate once and call tools; results and failures of both.

The core keeps the token ids, and here it keeps the limits of tokens, turns and calls, whatever the step does.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from types import TracebackType
from typing import Any

from ramet.engines.protocol import Completion, FinishReason, FirstReport, Request
from ramet.errors import ConfigError, PluginError, RametError
from ramet.event_loop import is_cancelled
from ramet.plugins import origin
from ramet.plugins.output_checks import step_problem, stop_problem
from ramet.plugins.plugin_code import defined_at, named
from ramet.rollout.branching.events import Phase
from ramet.rollout.completion import append_completion, completion_problem, ended_at_stop
from ramet.rollout.faults import RolloutFailed
from ramet.rollout.group_context import GroupContext
from ramet.rollout.states import States
from ramet.rollout.tools.runner import CallEnd, refused_call
from ramet.rollout.tools.text import visible
from ramet.rollout.tree import LiveRollout
from ramet.types import (
    CallStatus,
    Generation,
    Insert,
    Message,
    Origin,
    RolloutState,
    Segment,
    SegmentKind,
    StepResult,
    StopReason,
    ToolCall,
    ToolRecord,
    ToolResult,
    ToolSchema,
)

Report = Callable[[LiveRollout, Phase, int, tuple[float, ...]], None]


class CallLimit(RametError):
    """The policy asked for one more tool call than a rollout may make. It passes through the step and ends the rollout
    with `StopReason.CALL_LIMIT`, also if the step catches it.
    """


class RolloutTurn:
    """`StepContext`. As a context manager around the step's call it ends the turn's calls, and raises what failed."""

    def __init__(
        self,
        live: LiveRollout,
        context: GroupContext,
        environment: Any = None,
        *,
        states: States | None = None,
        report: Report | None = None,
    ) -> None:
        self.live = live
        self.number = live.turn  # of the rollout's turns, from 0
        self.context = context
        self.environment = environment
        self._states = states
        self._report = report  # called once, with the entropies of the first tokens
        self._has_generated = False
        self._failure: RolloutFailed | None = None
        self._is_over_limit = False
        self._is_over = False
        self._record = live.turns[-1]
        self._n_earlier_calls = sum([len(turn.calls) for turn in live.turns])
        self._shared = live.sampled_in_turn  # its parent's, in the turn in which a fork begins
        self._begun: list[str] = []  # the tools of this turn's calls, in the order in which they were made
        self._records: dict[int, ToolRecord] = {}  # of this turn's calls, by the order in which they were made
        self._calling: set[asyncio.Task[Any]] = set()  # tasks that wait for a call of this turn
        self._quiet: asyncio.Event | None = None  # set once no call is running, if the end waits for that

    async def __aenter__(self) -> RolloutTurn:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Calls end with their turn. What failed is raised whether the step let it pass, caught it, or raised another
        error because of it; only a deadline, a cancellation and a broken contract come first.
        """
        if error is None and self._failure is None and not self._calling:  # nearly always
            self._is_over = True
            end_if_pruned(self.live)
            return False
        # Even if a step changes `CallLimit`: the model's text must not decide that its rollout is masked.
        at_limit = (
            self._is_over_limit and isinstance(error, Exception) and not isinstance(error, PluginError | ConfigError)
        )
        try:
            await self._end_calls(cancel=error is not None and not at_limit)
        except asyncio.CancelledError:
            await self._end_calls(cancel=True)
            raise
        if error is None or at_limit:
            end_if_pruned(self.live)  # the step may have caught its cancellation
        comes_first = isinstance(error, PluginError | ConfigError | KeyboardInterrupt)
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            comes_first = True
        failure, self._failure = self._failure, None  # in a cycle with its frames it would outlive the rollout
        if failure is not None and failure is not error and not comes_first:
            raise failure from failure.__cause__ or error
        return at_limit

    async def _end_calls(self, *, cancel: bool) -> None:
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

    @property
    def state(self) -> RolloutState:
        """The step's view of the rollout as this turn begins."""
        live = self.live
        return RolloutState(
            task=self.context.task,
            rollout=live.key.path,
            turn=self.number,
            response=live.response[: len(live.response) - sum([len(s.text) for s in self._shared])],
            n_tool_calls=self._n_earlier_calls,
            environment=self.environment,
        )

    @property
    def tools(self) -> Sequence[ToolSchema]:
        return self.context.schemas

    @property
    def max_tool_calls(self) -> int:
        return self.context.plan.max_tool_calls

    @property
    def turns_left(self) -> int:
        return self.context.config.max_turns - self.number

    @property
    def tokens_left(self) -> int:
        return max(0, self.context.room(self.live))

    def calls_left(self, tool: str) -> int:
        if all(schema.name != tool for schema in self.context.schemas):
            return 0
        remaining = self.max_tool_calls - self._n_earlier_calls - len(self._begun)
        limit = self.context.plan.tool_calls.get(tool)
        return remaining if limit is None else min(remaining, max(0, limit - self._n_begun(tool)))

    def _n_begun(self, tool: str) -> int:
        """Calls of this tool, this turn's included."""
        earlier = [call.name for turn in self.live.turns[:-1] for call in turn.calls]
        return earlier.count(tool) + self._begun.count(tool)

    def render(self, messages: Sequence[Message]) -> Sequence[Insert]:
        return rendered(messages, self.live, self.context, after=self.live.token_ids[-1])

    async def generate(self, *, stop: Sequence[str] = ()) -> Generation:
        if self._has_generated:
            raise PluginError(f"rollout step {self.context.step_name} called generate twice in one turn; allowed: once")
        if (problem := stop_problem(stop)) is not None:
            raise PluginError(f"rollout step {self.context.step_name} {problem}")
        self._has_generated = True
        live, context = self.live, self.context
        request = context.request(live, tuple(stop))
        started = time.perf_counter()
        try:
            completion = await self._complete(request)
        except RolloutFailed as error:
            self._failure = error
            raise
        if self._shared:
            shared = "".join(segment.text for segment in self._shared)
            completion = ended_at_stop(completion, shared, request.sampling.stop, context.encoder)
        seconds = time.perf_counter() - started
        live.add_stat("generate_s", seconds)
        context.counts.turns += 1
        context.counts.tokens += len(completion.token_ids)
        self._report_first(completion.entropies)
        end_if_pruned(live)
        generation = self._record.generation = append_completion(live, completion, context.encoder)
        if context.observer is not None:
            context.observer.sampled(live.key.path, self.number, generation, len(completion.token_ids), seconds)
        return generation

    async def _complete(self, request: Request) -> Completion:
        def on_first(first: FirstReport) -> None:
            self._report_first(first.entropies)

        engine = self.context.engine
        try:
            with self.context.watchdog.wait(f"generation of rollout {self.live.key.text}, turn {self.number}"):
                completion = await engine.generate(request, on_first)
        except asyncio.CancelledError:
            engine.abort(request.id)
            raise
        except ConfigError as error:
            raise named(error, f"engine {engine.info.name!r}", "engine") from error
        except PluginError:
            raise
        except Exception as error:  # whatever an engine raises, one request failed and the others continue
            raise RolloutFailed("engine", f"{type(error).__name__}: {error}") from error
        if completion.finish is FinishReason.ABORT:
            raise RolloutFailed("engine", "the request was aborted")
        problem = completion_problem(completion, self.context.versions)
        if problem is not None:
            raise RolloutFailed("engine", f"request {request.id!r} was answered with what cannot be used: {problem}")
        return completion

    def _report_first(self, entropies: Sequence[float]) -> None:
        """Report once a turn, at the engine's first report or, without one, at the end; not for what ended before."""
        report, self._report = self._report, None
        if report is None or self.live.finished:
            return
        k = self.context.config.first_tokens
        shared = [entropy for segment in self._shared for entropy in segment.entropies or ()]
        report(self.live, Phase.FIRST, self.number, (*shared[:k], *entropies[:k])[:k] if entropies else ())

    async def call_tool(self, call: ToolCall) -> ToolResult:
        number, task = self._begin_call(call.name), asyncio.current_task()
        live, context, states = self.live, self.context, self._states
        assert task is not None
        context.counts.in_tools += not self._calling
        self._calling.add(task)
        if states is not None and (context.task.schemas is not None or call.name not in states):
            states = None  # a tool that the row describes has none, whatever it is called
        try:
            # One after the other, in their order: a state must not depend on which call is faster.
            async with nullcontext() if states is None else states.in_order(live, call.name):
                call = ToolCall(
                    name=call.name,
                    arguments=call.arguments,
                    rollout=live.key.text,
                    turn=self.number,
                    task=context.task,
                    state=None if states is None else await states.use(live, call.name, self.environment),
                    environment=self.environment,
                )
                if context.observer is not None:
                    context.observer.calling(live.key.path, call)
                record, error = self._refused(call) or await context.runner(call.name).run(call, ends_at=live.ends_at)
                self._keep(number, record)
            if error is not None:
                raise error
        except RolloutFailed as error:  # of the tool, or of its state
            self._failure = error
            raise
        finally:
            self._calling.discard(task)
            context.counts.in_tools -= not self._calling
            if self._quiet is not None and not self._calling:
                self._quiet.set()
        metadata = deepcopy(record.metadata) if record.metadata else {}  # what the step is given is its own
        is_error = record.status is CallStatus.ERROR
        return ToolResult(text=record.text, error=is_error, cached=record.cached, metadata=metadata)

    def _begin_call(self, tool: str) -> int:
        """The call's number in this turn; counted before it is waited for: a step may make several calls at once."""
        if self._is_over:
            raise PluginError(f"rollout step {self.context.step_name} made a tool call after its turn had ended")
        number = len(self._begun)
        if self._n_earlier_calls + number >= self.max_tool_calls:
            self._is_over_limit = True
            raise CallLimit(f"the limit of {self.max_tool_calls} tool calls is reached")
        self._begun.append(tool)
        return number

    def _refused(self, call: ToolCall) -> CallEnd | None:
        """The end of a call that no tool gets to see; None if its tool may run."""
        names = [schema.name for schema in self.context.schemas]
        limit = self.context.plan.tool_calls.get(call.name)
        if call.name not in names:
            return refused_call(
                call, f"There is no tool {visible(call.name[:80])}. Tools: {', '.join(names) or 'none'}."
            )
        if limit is not None and self._n_begun(call.name) > limit:
            return refused_call(call, f"The limit of {limit} {call.name} calls is used up.")
        return None

    def _keep(self, number: int, record: ToolRecord) -> None:
        live, observer = self.live, self.context.observer
        self._records[number] = record
        self._record.calls = tuple([self._records[number] for number in sorted(self._records)])
        live.add_stat("tool_s", record.run_s)
        live.add_stat("tool_wait_s", record.wait_s)
        if observer is not None:
            observer.called(live.key.path, record)

    def end(self, result: StepResult) -> None:
        """Append the step's inserts, keep its results for the turn, and stop the rollout where that is due."""
        result = checked_result(result, self.context)
        if self._is_over_limit:
            result = replace(result, insert=(), stop=StopReason.CALL_LIMIT)
        live, context = self.live, self.context
        fits = insert(live, result.insert, context)
        live.answer = result.answer
        live.record_turn(result.info, result.reward)
        add_metrics(live, result.metrics)
        if result.stop is not None:
            live.stop = result.stop
        elif not fits or context.room(live) < 1:
            live.stop = StopReason.LENGTH
        elif self.number + 1 >= context.config.max_turns:
            live.stop = StopReason.TURN_LIMIT
        ended = live.token_ids[-1] in context.encoder.eos_ids  # by the policy itself, where a turn is a message
        if live.stop is StopReason.CALL_LIMIT and not ended and context.room(live) >= 1:
            ids = array("i", [context.encoder.end_of_turn_id])  # not sampled, so never trained
            live.append(
                Segment(origin=Origin.INSERTED, kind=SegmentKind.FORCED, turn=self.number, text="", token_ids=ids)
            )


def end_if_pruned(live: LiveRollout) -> None:
    """Raise `CancelledError` if the scheduler stopped the rollout: cancelled by a decision on its own report, its task
    continues to its next wait, and its work until then is dropped.
    """
    if live.is_pruned:
        raise asyncio.CancelledError


def checked_result(result: StepResult, context: GroupContext) -> StepResult:
    if (problem := step_problem(result)) is not None:
        raise PluginError(f"rollout step {origin(context.step)}: {problem}{defined_at(context.step)}")
    return result


def rendered(messages: Sequence[Message], live: LiveRollout, context: GroupContext, *, after: int) -> Sequence[Insert]:
    """The chat template's text for messages of a step after the token `after`."""
    try:
        parts = context.encoder.suffix(messages, after=after)
    except ValueError as error:
        raise PluginError(f"rollout step {context.step_name} called render wrongly: {error}") from error
    if context.observer is not None:
        context.observer.rendered(live.key.path, messages)
    return parts


def first_inserts(
    first: Sequence[Insert] | Sequence[Message], live: LiveRollout, context: GroupContext
) -> Sequence[Insert]:
    """Inserts of an environment's first observation, which follow the prompt."""
    messages = [part for part in first if isinstance(part, Message)]
    if messages:
        return rendered(messages, live, context, after=live.token_ids[live.n_prompt_tokens - 1])
    return [part for part in first if not isinstance(part, Message)]


def insert(live: LiveRollout, parts: Sequence[Insert], context: GroupContext) -> bool:
    """Append what a step inserts. Text that leaves no room to answer is left out: the rollout is too long."""
    if not parts:
        return True
    ids = array("i")
    for part in parts:
        ids.extend(context.encoder.insert(part))
    if len(ids) >= context.room(live):
        return False
    text = "".join(part.text for part in parts)
    inserted = Segment(origin=Origin.INSERTED, kind=SegmentKind.RESULT, turn=live.turn, text=text, token_ids=ids)
    live.append(inserted)
    if context.observer is not None:
        context.observer.inserted(live.key.path, inserted)
    return True


def add_metrics(live: LiveRollout, metrics: Mapping[str, float]) -> None:
    """Sum what a step measured, and count its turns."""
    for name, value in metrics.items():
        live.add_stat(f"step/{name}", value)
        live.add_stat(f"step_turns/{name}", 1)
