"""Plays one rollout from where it stands to its stop: generate, append, tool, append, and on to the next turn.

Limits are kept here, and failures stay here: whatever goes wrong with one rollout masks that rollout (`Fault`); only a
broken contract (`PluginError`) or a user's mistake (`ConfigError`) leaves this module.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Callable, Sequence

from ramet.config.schema import RolloutConfig
from ramet.errors import ConfigError, PluginError
from ramet.rollout.context import FirstTokensHook, TurnContext, Workplace
from ramet.rollout.tree import LiveRollout
from ramet.types import (
    Fault,
    Insert,
    Origin,
    RolloutState,
    RolloutStep,
    Segment,
    SegmentKind,
    StepResult,
    StopReason,
    Task,
)

logger = logging.getLogger(__name__)


class Player:
    """Plays rollouts of one task. `on_first` and `on_turn` tell the scheduler where branching may be asked about."""

    def __init__(
        self,
        *,
        task: Task,
        step: RolloutStep,
        place: Workplace,
        config: RolloutConfig,
        step_ends_at: float,
        on_first: FirstTokensHook,
        on_turn: Callable[[LiveRollout], None],
    ) -> None:
        self.task = task
        self.step = step
        self.place = place
        self.config = config
        self.step_ends_at = step_ends_at  # time of the event loop
        self.on_first = on_first
        self.on_turn = on_turn
        self._step_name = f"{type(step).__module__}.{type(step).__qualname__}"

    async def play(self, live: LiveRollout) -> None:
        """Returns when the rollout has stopped or is masked. Raises only `PluginError` and `ConfigError`."""
        started = time.perf_counter()
        now = asyncio.get_running_loop().time()
        own_end = now + self.config.deadline_s
        live.ends_at = ends_at = min(own_end, self.step_ends_at)
        limit = asyncio.timeout_at(ends_at)
        try:
            async with limit:
                if ends_at <= now:
                    await asyncio.sleep(0)  # the deadline has passed: it strikes here, before anything is sampled
                await self._turns(live)
        except (PluginError, ConfigError):
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # one rollout's failure is data: it is masked
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            live.fault = self._fault(error, live, expired=limit.expired(), step_over=own_end > self.step_ends_at)
            logger.warning("rollout %s is masked: %s: %s", live.key, live.fault.where, live.fault.message)
        live.add_stat("seconds", time.perf_counter() - started)

    def _fault(self, error: BaseException, live: LiveRollout, *, expired: bool, step_over: bool) -> Fault:
        if expired and isinstance(error, TimeoutError):
            key = "rollout.step_deadline_s" if step_over else "rollout.deadline_s"
            value = self.config.step_deadline_s if step_over else self.config.deadline_s
            return Fault(where="deadline", message=f"not finished within {key}={value:g} (turn {live.turn})")
        if live.fault is not None:
            return live.fault
        return Fault(where="step", message=f"{self._step_name} raised {type(error).__name__}: {error}")

    async def _turns(self, live: LiveRollout) -> None:
        while live.stop is None:
            context = TurnContext(live, self.place, self._room(live), self.on_first, self._step_name)
            state = RolloutState(
                task=self.task,
                rollout=live.key.path,
                turn=live.turn,
                response=live.response,
                n_tool_calls=len(live.tool_calls),
            )
            try:
                result = await self.step(state, context)
            finally:
                live.fault = context.fault
            if live.fault is not None:  # the step swallowed the error; the rollout is lost all the same
                raise RuntimeError(live.fault.message)
            self._end_turn(live, self._checked(result))
            if live.stop is None:
                live.begin_turn()
                self.on_turn(live)

    def _checked(self, result: StepResult) -> StepResult:
        if not isinstance(result, StepResult):
            raise PluginError(f"rollout step {self._step_name} returned {type(result).__name__}; allowed: StepResult")
        if result.stop is StopReason.FAULT:
            raise PluginError(f"rollout step {self._step_name} stopped with FAULT; let the InfraError pass instead")
        return result

    def _end_turn(self, live: LiveRollout, result: StepResult) -> None:
        fits = self._insert(live, result.insert)
        live.answer = result.answer
        if result.stop is not None:
            live.stop = result.stop
        elif not fits or self._room(live) < 1:
            live.stop = StopReason.LENGTH
        elif live.turn + 1 >= self.config.max_turns:
            live.stop = StopReason.TURN_LIMIT
        if live.stop is StopReason.CALL_LIMIT and self._room(live) >= 1:
            live.append(self._forced(live.turn))

    def _insert(self, live: LiveRollout, parts: Sequence[Insert]) -> bool:
        """Append what the step inserts. Text that leaves no room to answer is left out: the rollout is too long."""
        if not parts:
            return True
        ids = array("i")
        for part in parts:
            ids.extend(self.place.encoder.insert(part))
        if len(ids) >= self._room(live):
            return False
        text = "".join(part.text for part in parts)
        live.append(Segment(origin=Origin.INSERTED, kind=SegmentKind.RESULT, turn=live.turn, text=text, token_ids=ids))
        return True

    def _forced(self, turn: int) -> Segment:
        """The end of turn that the core puts after a call too many. Not sampled, so never trained."""
        ids = array("i", [self.place.encoder.end_of_turn_id])
        return Segment(origin=Origin.INSERTED, kind=SegmentKind.FORCED, turn=turn, text="", token_ids=ids)

    def _room(self, live: LiveRollout) -> int:
        """Tokens that may still follow: by the response's limit and by the engine's."""
        of_response = self.config.max_response_tokens - live.n_response_tokens
        return min(of_response, self.place.engine.info.max_tokens - len(live.token_ids))


def _is_cancelled() -> bool:
    """Whether this task itself was cancelled: then the run ends. Else something cancelled itself and let it out."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
