"""One rollout whose turns an agent asks for.

Its session has the turns; the live rollout shows them to the scheduler: complete ones, in the order in which their
requests were accepted. Turns that overlap (parallel sub-agents) are shown one after the other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from ramet.errors import ConfigError, InfraError, PluginError
from ramet.event_loop import is_cancelled
from ramet.io import repeats
from ramet.plugins import origin
from ramet.plugins.output_checks import agent_problem, agent_value_problem
from ramet.plugins.plugin_code import defined_at, raised_at
from ramet.rollout.branching.events import Phase
from ramet.rollout.faults import RolloutFailed, StateFailed
from ramet.rollout.gateway.threads import SessionTurn
from ramet.rollout.keys import stable_seed
from ramet.rollout.turn import Report, add_metrics, end_if_pruned
from ramet.types import (
    Agent,
    AgentBudget,
    AgentContext,
    AgentResult,
    AgentSettings,
    AgentStatus,
    CallStatus,
    Generation,
    SegmentKind,
    StopReason,
    ToolRecord,
)

if TYPE_CHECKING:
    from ramet.engines.protocol import Completion
    from ramet.rollout.gateway.server import Gateway
    from ramet.rollout.gateway.session import AgentSession
    from ramet.rollout.group_context import GroupContext
    from ramet.rollout.tree import LiveRollout

logger = logging.getLogger(__name__)
AGENT = "agent"  # in faults; faults of a replay are `state:agent`
MODEL = "policy"  # the name under which agents find it


class AgentRollout:
    """`SessionWatch`: keeps a live rollout equal to its session, and reports each turn once."""

    session: AgentSession  # set before any method is called

    def __init__(
        self, live: LiveRollout, context: GroupContext, report: Report, refresh_group: Callable[[], None]
    ) -> None:
        self.live = live
        self._context, self._report, self._refresh_group = context, report, refresh_group
        self._firsts: dict[int, tuple[float, ...]] = {}  # by turn: the entropies of its first tokens
        self._n_reported = live.turn  # turns whose first tokens were reported
        self._replied_at: dict[int, float] = {}  # by turn
        self._began = 0.0
        self._limit = asyncio.timeout(None)  # of the agent while it runs

    async def run(self, gateway: Gateway, folders: Path, settings: AgentSettings, seconds: float) -> None:
        """Run the agent to its end, which `seconds` from now a deadline is. Its folder is made below `folders`.

        Raises `RolloutFailed` for what masks the rollout: engine and gateway, an outage that the agent reports, a
        replay whose requests differ. A crash of the agent is the policy's doing.
        """
        key, self._began = gateway.open(self.session), time.monotonic()
        try:
            with TemporaryDirectory(prefix="rollout-", dir=folders, ignore_cleanup_errors=True) as folder:
                context = self._agent_context(gateway.url, key, Path(folder), seconds)
                result, error = await self._run_agent(context, settings.timeout_s)
            end_if_pruned(self.live)  # the agent may have caught its cancellation
            await self.session.drain()
            end_if_pruned(self.live)
        finally:
            gateway.close(key)
            self.session.release(kept=0)  # the scheduler releases it, once no fork needs it
        self._check(error)
        if error is not None:
            message = f"raised {type(error).__name__}: {error}{raised_at(error)}"
            result = AgentResult(info={"error": message}, reward=0.0, status=AgentStatus.FAILED)
            if self.session.refused is None:
                repeats.warn(logger, "agents crashed", "rollout %s: the agent %s", self.live.key, message)
        if self.session.refused is not None:  # it ended because of the limit, whatever it made of that
            result = replace(result, status=AgentStatus.DONE)
        self._finish(result, settings)

    def _agent_context(self, url: str, key: str, folder: Path, seconds: float) -> AgentContext:
        context, root = self._context, self.live.root.key
        config = context.config
        return AgentContext(
            base_url=f"{url}/v1",
            key=key,
            model=MODEL,
            budget=AgentBudget(
                turns=config.max_turns,
                tokens=config.max_response_tokens,
                tool_calls=context.plan.max_tool_calls,
                seconds=seconds,
            ),
            folder=folder,
            seed=stable_seed("agent", context.seed, root.salt, root.step, root.task, root.path),
        )

    async def _run_agent(self, ctx: AgentContext, timeout_s: float | None) -> tuple[AgentResult, BaseException | None]:
        """The agent's result, or its crash or outage. Cancelled once a fork's request is not in the record."""
        step = cast(Agent, self._context.step)
        self._limit = limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                result = await step.run(self._context.task, ctx)
        except (PluginError, ConfigError):
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            if isinstance(error, TimeoutError) and limit.expired():
                error = TimeoutError(f"the agent did not end within timeout_s={timeout_s}")
            return AgentResult(), error
        if (problem := agent_problem(result)) is not None:
            raise PluginError(f"agent {origin(step)}: {problem}{defined_at(step, 'run')}")
        if (problem := agent_value_problem(result)) is not None:
            return AgentResult(), ValueError(problem)  # values may come from the policy's text
        return result, None

    def _check(self, error: BaseException | None) -> None:
        """Raise for what is not the policy's doing."""
        session = self.session
        if session.broken is not None:
            raise session.broken
        if session.mismatch is not None:
            raise StateFailed(AGENT, session.mismatch)
        if isinstance(error, RolloutFailed):
            raise error
        if isinstance(error, InfraError):
            raise RolloutFailed(AGENT, str(error)) from error
        if session.is_replaying:
            raise StateFailed(AGENT, "run again, the agent ended without a request of the record")
        if session.failures:
            raise RolloutFailed("engine", next(iter(session.failures.values())))
        if not any(turn.reply is not None for turn in session.threads.turns):
            why = "" if error is None else f": {type(error).__name__}: {error}{raised_at(error)}"
            raise RolloutFailed(AGENT, f"the agent ended without a complete request to the policy{why}")

    def _finish(self, result: AgentResult, settings: AgentSettings) -> None:
        """Note what the agent returned, and why the rollout stopped."""
        live, crashed = self.live, result.status is AgentStatus.FAILED
        self._close_turn(self.session.threads.turns[live.turn])
        for record, turn in zip(live.turns, self.session.threads.turns, strict=True):
            if turn.number in self._replied_at:  # a result may have come after later turns
                record.calls = self._calls(turn)
                live.add_stat("tool_s", max((call.run_s for call in record.calls), default=0.0))
            elif not all(call.text for call in record.calls):  # also after a fork began
                texts = [call.text for call in self._calls(turn)]
                record.calls = tuple(replace(call, text=text) for call, text in zip(record.calls, texts, strict=True))
        live.record_end({**result.info, **({"agent": str(result.status)} if crashed else {})}, None)
        self._note_rewards(0.0 if crashed and result.reward is None else result.reward)
        live.answer = None if crashed else result.answer
        if live.answer is not None:
            live.stop = StopReason.ANSWER
        else:
            live.stop = self.session.refused or StopReason.DONE
        if crashed and settings.on_crash == "mask":
            live.left_out = "agent_crash"
        add_metrics(live, {"agent_crashed": float(crashed), "malformed_calls": float(self.session.malformed_calls)})

    def _note_rewards(self, at_end: float | None) -> None:
        """Note the rewards that came while it ran, and at its end."""
        live, rewards = self.live, self.session.rewards
        for record, reward in zip(live.turns, rewards.by_turn(len(live.turns), at_end), strict=True):
            record.reward = reward
        live.token_rewards = rewards.by_position(self.session.threads.turns)

    def refresh(self) -> None:
        """Bring the live rollout's segments up to the session's, of the turns that it shows."""
        live, turns = self.live, self.session.threads.turns
        if not turns:
            return
        live.segments, live.thread_starts = self.session.threads.segments(len(live.turns))
        start = 0
        for record, turn in zip(live.turns, turns, strict=False):
            record.start, record.thread = start + sum(not s.is_sampled for s in turn.segments), turn.thread
            start += len(turn.segments)
        live.token_ids = array("i", [token for segment in live.segments for token in segment.token_ids])
        prompt = [s for s in live.segments if s.kind is SegmentKind.PROMPT]
        live.n_prompt_tokens = sum(map(len, prompt))
        live.response = "".join(s.text for s in live.segments[len(prompt) :])
        if live.fork_turn is not None:
            forked = turns[live.fork_turn]
            live.n_shared = live.turns[live.fork_turn].start + len(forked.given)
        if live.is_pruned:
            live.cut(live.turn)

    def accepted(self, turn: SessionTurn) -> None:
        self._refresh_group()  # a new thread may have cut a segment that others share
        if turn.number == self.live.fork_turn:
            calls = [call for earlier in self.live.turns[: turn.number] for call in earlier.calls]
            seconds = time.monotonic() - self._began
            add_metrics(self.live, {"replayed_s": seconds, "replayed_turns": turn.number, "replayed_calls": len(calls)})
        self._advance()

    def first(self, turn: SessionTurn, entropies: Sequence[float]) -> None:
        given = [entropy for segment in turn.given for entropy in segment.entropies or ()]
        k = self._context.config.first_tokens
        self._firsts.setdefault(turn.number, (*given[:k], *entropies[:k])[:k] if entropies else ())
        self._advance()

    def over(self, turn: SessionTurn, completion: Completion | None, seconds: float) -> None:
        live, context = self.live, self._context
        self._replied_at[turn.number] = time.monotonic()
        if completion is not None:
            live.add_stat("generate_s", seconds)
            live.add_stat("sampled_tokens", len(completion.token_ids))
            live.add_stat("prompt_tokens", completion.prompt_tokens)
            live.add_stat("cached_tokens", completion.cached_tokens)
            context.counts.turns += 1
            context.counts.tokens += len(completion.token_ids)
            self._show(turn, completion, seconds)
        self.first(turn, () if completion is None else completion.entropies)

    def mismatched(self) -> None:
        if not self._limit.expired():
            self._limit.reschedule(0.0)  # the agent would get refusals until it gives up

    def _show(self, turn: SessionTurn, completion: Completion, seconds: float) -> None:
        if (observer := self._context.observer) is None:
            return
        path = self.live.key.path
        for segment in turn.segments:
            if not segment.is_sampled:
                observer.inserted(path, segment)
        text = "".join(segment.text for segment in turn.segments if segment.is_sampled)
        cut = turn.reply is not None and turn.reply.finish == "length"
        shown = Generation(text=text, stop=completion.stop, finished=not cut, truncated=cut)
        observer.sampled(path, turn.number, shown, len(completion.token_ids), seconds)

    def _advance(self) -> None:
        """Show turns that are over, and report what happened in their order."""
        live, turns = self.live, self.session.threads.turns
        while not live.finished and not live.is_pruned:
            turn = turns[live.turn]
            self.refresh()
            if turn.number in self._firsts and self._n_reported == turn.number:
                self._n_reported += 1
                self._report(live, Phase.FIRST, turn.number, self._firsts[turn.number])
            if not turn.is_over or turn.number + 1 == len(turns) or live.is_pruned:
                return
            self._close_turn(turn)
            live.begin_turn()
            self.refresh()
            self._report(live, Phase.BEGIN, turn.number, ())

    def _close_turn(self, turn: SessionTurn) -> None:
        """Note the calls of a turn that is over, and what its client asked for."""
        live = self.live
        live.turns[-1].calls = records = self._calls(turn)
        live.record_turn({"asked": dict(turn.asked)} if turn.asked else {}, None)
        if (observer := self._context.observer) is not None:
            for record in records:
                observer.called(live.key.path, record)

    def _calls(self, turn: SessionTurn) -> tuple[ToolRecord, ...]:
        """The calls of a turn, each with the result that a later request brought; "" as long as none has."""
        replied = self._replied_at.get(turn.number, 0.0)
        records = []
        for call in () if turn.reply is None else turn.reply.calls:
            text, at = self.session.results.get(call.id, ("", replied))
            arguments: Mapping[str, Any] = call.parsed if isinstance(call.parsed, Mapping) else {"text": call.arguments}
            records.append(
                ToolRecord(
                    turn=turn.number,
                    name=call.name,
                    arguments=arguments,
                    status=CallStatus.OK,
                    text=text,
                    wait_s=0.0,
                    run_s=max(0.0, at - replied),
                    attempts=1,
                )
            )
        return tuple(records)
