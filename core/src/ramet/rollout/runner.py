"""Runs one rollout from its present state to its stop: generate, append, tool, append, and on to the next turn.

Limits are kept here, and failures stay here: whatever goes wrong with one rollout masks that rollout (`Fault`); only a
broken contract (`PluginError`) or a user's mistake (`ConfigError`) leaves this module.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ramet.config.schema import RolloutConfig
from ramet.errors import ConfigError, InfraError, PluginError
from ramet.event_loop import is_cancelled
from ramet.io import repeats
from ramet.output_checks import begin_problem, state_key_problem, step_problem
from ramet.plugin_code import defined_at, named, raised_at
from ramet.plugins import origin
from ramet.rollout.deadlines import DeadlineQueue, TaskLimit
from ramet.rollout.faults import DEFECT, RolloutFailed, is_defect
from ramet.rollout.group_context import GroupContext
from ramet.rollout.keys import RolloutKey
from ramet.rollout.stateful import ENVIRONMENT
from ramet.rollout.states import States
from ramet.rollout.tree import LiveRollout
from ramet.rollout.turn_context import FirstTokensHook, TurnContext, end_if_pruned, state_of
from ramet.types import (
    Fault,
    Insert,
    Origin,
    RolloutStep,
    Segment,
    SegmentKind,
    StepResult,
    StopReason,
    Task,
)

logger = logging.getLogger(__name__)


class RolloutRunner:
    """Runs rollouts of one task. `on_first` and `on_turn` are called where the scheduler may ask about branches."""

    def __init__(
        self,
        *,
        task: Task,
        step: RolloutStep,
        context: GroupContext,
        states: States | None,
        config: RolloutConfig,
        step_ends_at: float,
        on_first: FirstTokensHook,
        on_turn: Callable[[LiveRollout], None],
    ) -> None:
        self.task = task
        self.step = step
        self.context = context
        self.states = states
        self.config = config
        self._step_ends_at = step_ends_at  # time of the event loop
        self._deadlines = DeadlineQueue(config.deadline_s, TaskLimit.expire, latest=step_ends_at)
        self.on_first = on_first
        self.on_turn = on_turn
        self._step_name = f"{type(step).__module__}.{type(step).__qualname__}"
        is_environment = states is not None and ENVIRONMENT in states
        self._begin = getattr(step, "begin", None) if is_environment else None
        self._finish = getattr(step, "finish", None) if is_environment else None
        self._state_key = getattr(step, "state_key", None) if is_environment else None

    async def run(self, live: LiveRollout) -> None:
        """Returns when the rollout has stopped or is masked. Raises only `PluginError` and `ConfigError`."""
        started = time.perf_counter()
        if self.context.observer is not None and live.parent is None:
            self.context.observer.began(live.key.path, live.segments[0])
        limit = TaskLimit(self._deadlines)
        live.ends_at = limit.ends_at
        try:
            with limit:
                if limit.ends_at <= asyncio.get_running_loop().time():
                    limit.expire()
                    await asyncio.sleep(0)  # the time-out is raised here, before anything is sampled
                await self._turns(live)
        except ConfigError as error:
            raise named(error, f"rollout step {origin(self.step)}", "rollout_step") from error
        except PluginError:
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # one rollout's failure is data: it is masked
            if isinstance(error, asyncio.CancelledError) and is_cancelled() and not live.is_pruned:
                raise
            if live.is_pruned:
                return  # the scheduler stopped it
            live.fault = self._fault(error, live, expired=limit.expired, step_over=limit.ends_at == self._step_ends_at)
            self._warn_of(live.key, live.fault)
        live.add_stat("seconds", time.perf_counter() - started)

    def _warn_of(self, rollout: RolloutKey, fault: Fault) -> None:
        repeats.warn(
            logger,
            f"rollouts masked by {fault.where}",
            "rollout %s is masked: %s: %s",
            rollout,
            fault.where,
            fault.message,
            trace=logger.isEnabledFor(logging.DEBUG),
        )

    def _fault(self, error: BaseException, live: LiveRollout, *, expired: bool, step_over: bool) -> Fault:
        if expired and isinstance(error, TimeoutError):
            key = "rollout.step_deadline_s" if step_over else "rollout.deadline_s"
            value = self.config.step_deadline_s if step_over else self.config.deadline_s
            return Fault(where="deadline", message=f"not finished within {key}={value:g} (turn {live.turn})")
        if live.fault is not None:
            return live.fault
        if isinstance(error, RolloutFailed):
            return error.fault
        raised = f"raised {type(error).__name__}: {error}{raised_at(error)}"
        if not is_defect(error):
            return Fault(where="step", message=f"{self._step_name} {raised}")
        return Fault(where=f"{DEFECT}step", message=f"rollout step {origin(self.step)} {raised}")

    async def _turns(self, live: LiveRollout) -> None:
        if self.states is not None:
            await self.states.start(live)
        if live.parent is None and live.prefix is None and self._begin is not None:
            first = await self._begin(await self._environment(live))
            if (problem := begin_problem(first)) is not None:
                raise PluginError(f"rollout step {origin(self.step)}: {problem}{defined_at(self.step, 'begin')}")
            self._insert_first(live, first)
        while live.stop is None:
            environment = await self._environment(live)
            if self._state_key is not None:
                live.state_keys.append(self._named(self._state_key(environment)))
            await self._turn(live, environment)
            if live.stop is None:
                live.begin_turn()
                self.on_turn(live)
        end_if_pruned(live)
        if self._finish is not None:
            self._merge_end(live, await self._finish(await self._environment(live), live.stop))

    async def _environment(self, live: LiveRollout) -> Any:
        """The state of the rollout step; None if it holds none."""
        if self.states is None or ENVIRONMENT not in self.states:
            return None
        return await self.states.use(live, ENVIRONMENT)

    async def _turn(self, live: LiveRollout, environment: Any) -> None:
        context = TurnContext(
            live, self.context, self.on_first, self._step_name, states=self.states, environment=environment
        )
        try:
            result = await self.step(state_of(live, self.task, environment), context)
            await context.end()
            end_if_pruned(live)  # the step may have caught its cancellation
        except BaseException:
            await context.end(cancel=True)
            raise
        finally:
            live.fault = context.fault  # also where an error left the step: `_fault` prefers it to what was raised
        if live.fault is not None:  # the step caught the error that `TurnContext` raised; the rollout is masked anyway
            raise RuntimeError(live.fault.message)
        self._end_turn(live, self._checked(result))

    def _named(self, key: str) -> str:
        if (problem := state_key_problem(key)) is not None:
            raise PluginError(f"rollout step {origin(self.step)}: {problem}{defined_at(self.step, 'state_key')}")
        return key

    def _checked(self, result: StepResult) -> StepResult:
        problem = step_problem(result)
        if problem is not None:
            raise PluginError(f"rollout step {origin(self.step)}: {problem}{defined_at(self.step)}")
        return result

    def _insert_first(self, live: LiveRollout, parts: Sequence[Insert]) -> None:
        """What `begin` gave: it comes before the first turn, so forks share it."""
        if not self._insert(live, parts):
            raise InfraError(f"the first observation of {self._step_name} leaves no room for a response")
        live.starts[0] = len(live.segments)

    def _merge_end(self, live: LiveRollout, result: StepResult | None) -> None:
        """What `finish` gave belongs to the last turn."""
        if result is None:
            return
        result = self._checked(result)
        if result.insert or result.stop is not None:
            raise PluginError(f"finish of {self._step_name} returned insert or stop; the rollout has ended already")
        self._add_metrics(live, result.metrics)
        live.record_end(result.info, result.reward)
        if result.answer is not None:
            live.answer = result.answer

    def _add_metrics(self, live: LiveRollout, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            live.add_stat(f"step/{name}", value)
            live.add_stat(f"step_turns/{name}", 1)

    def _end_turn(self, live: LiveRollout, result: StepResult) -> None:
        fits = self._insert(live, result.insert)
        live.answer = result.answer
        live.record_turn(result.info, result.reward)
        self._add_metrics(live, result.metrics)
        if result.stop is not None:
            live.stop = result.stop
        elif not fits or self.context.room(live) < 1:
            live.stop = StopReason.LENGTH
        elif live.turn + 1 >= self.config.max_turns:
            live.stop = StopReason.TURN_LIMIT
        ended = live.token_ids[-1] in self.context.encoder.eos_ids  # by the policy itself, where a turn is a message
        if live.stop is StopReason.CALL_LIMIT and not ended and self.context.room(live) >= 1:
            live.append(self._forced(live.turn))

    def _insert(self, live: LiveRollout, parts: Sequence[Insert]) -> bool:
        """Append what the step inserts. Text that leaves no room to answer is left out: the rollout is too long."""
        if not parts:
            return True
        ids = array("i")
        for part in parts:
            ids.extend(self.context.encoder.insert(part))
        if len(ids) >= self.context.room(live):
            return False
        text = "".join(part.text for part in parts)
        inserted = Segment(origin=Origin.INSERTED, kind=SegmentKind.RESULT, turn=live.turn, text=text, token_ids=ids)
        live.append(inserted)
        if self.context.observer is not None:
            self.context.observer.inserted(live.key.path, inserted)
        return True

    def _forced(self, turn: int) -> Segment:
        """The end of turn that the core puts after a call too many. Not sampled, so never trained."""
        ids = array("i", [self.context.encoder.end_of_turn_id])
        return Segment(origin=Origin.INSERTED, kind=SegmentKind.FORCED, turn=turn, text="", token_ids=ids)
