"""The rollouts of one group whose turns an agent asks for: their sessions, and the forks that share their turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ramet.engines.protocol import Sampling
from ramet.rollout.agents.live import AgentRollout
from ramet.rollout.gateway.session import AgentSession, SessionLimits, SessionSettings
from ramet.rollout.gateway.threads import GroupSessions, SessionThreads
from ramet.rollout.keys import BranchPath
from ramet.rollout.turn import Report
from ramet.types import AgentSettings

if TYPE_CHECKING:
    from ramet.rollout.agents.service import AgentService
    from ramet.rollout.group_context import GroupContext
    from ramet.rollout.tree import LiveRollout


def agent_settings(agent: object) -> AgentSettings:
    """Return an agent's settings of the gateway and of crashes, or the defaults."""
    return cast(AgentSettings, getattr(agent, "settings", AgentSettings()))


class AgentGroup:
    """Sessions of the rollouts of one group."""

    def __init__(self, context: GroupContext, service: AgentService, report: Report, *, deterministic: bool) -> None:
        self._context, self._service, self._report = context, service, report
        self._agent = agent_settings(context.step)
        self._sessions, self._n_cuts = GroupSessions(), 0
        self._rollouts: dict[BranchPath, AgentRollout] = {}
        config, plan = context.config, context.plan
        self._settings = SessionSettings(
            engine=context.engine,
            encoder=context.encoder,
            limits=SessionLimits(
                max_turns=config.max_turns,
                max_tokens=config.max_response_tokens,
                max_tool_calls=plan.max_tool_calls,
            ),
            sampling=Sampling(
                temperature=plan.temperature,
                top_p=plan.top_p,
                top_k=plan.top_k,
                min_p=plan.min_p,
                repetition_penalty=plan.repetition_penalty,
                max_tokens=config.max_response_tokens,
            ),
            seed=context.seed,
            versions=context.versions,
            history=self._agent.history,
            in_order=deterministic,
            first_tokens=config.first_tokens,
        )

    def split(self, parent: LiveRollout, turn: int, token: int) -> None:
        """Let a segment end after the first sampled tokens of a turn, in all rollouts that share it."""
        self._rollouts[parent.path].session.threads.split(turn, token)
        self.refresh()

    def begin(self, live: LiveRollout) -> None:
        """Make the session of a rollout; a fork's has its parent's turns."""
        rollout = self._rollouts[live.path] = AgentRollout(live, self._context, self._report, self.refresh)
        if live.parent is None:
            threads = SessionThreads(self._settings.encoder, self._sessions)
            rollout.session = AgentSession(live.key.text, self._settings, threads=threads, watch=rollout)
        else:
            parent = self._rollouts[live.parent.path].session
            rollout.session = parent.fork(live.key.text, live.turn, live.fork_token, rollout)
            rollout.refresh()

    async def play(self, live: LiveRollout, seconds: float) -> None:
        """Run the agent for one rollout. Raises as `AgentRollout.run`."""
        assert self._service.gateway is not None
        await self._rollouts[live.path].run(self._service.gateway, self._service.folder, self._agent, seconds)

    def refresh(self) -> None:
        """Bring all rollouts up to date where segments that they share were cut."""
        if self._sessions.n_cuts != self._n_cuts:
            self._n_cuts = self._sessions.n_cuts
            for rollout in self._rollouts.values():
                rollout.refresh()

    def close(self) -> None:
        self._rollouts.clear()  # in cycles with the scheduler
