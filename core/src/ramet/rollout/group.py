"""One group of rollouts: which are started when. There is no barrier: one asyncio task per rollout.

Whatever happens to a rollout becomes a `RolloutEvent`; the event order gives the one that is decided next; the group's
history is brought up to date with it; the branch policy is asked; and what it answers is started at once. The core
enforces the budget, so a group always ends with exactly as many rollouts as were asked for, masked ones included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from ramet.config.schema import RolloutConfig
from ramet.rollout.branching.decisions import ask
from ramet.rollout.branching.event_order import ArrivalOrder, EventOrder, LogicalOrder, Phase, RolloutEvent
from ramet.rollout.branching.group_history import GroupHistory
from ramet.rollout.keys import BranchPath, RolloutKey, branch_rng, path_of, path_text
from ramet.rollout.replayer import Replayer
from ramet.rollout.runner import RolloutRunner
from ramet.rollout.states import States
from ramet.rollout.tree import LiveRollout, group_of, new_root
from ramet.rollout.turn_context import GroupContext
from ramet.types import (
    AfterTool,
    BranchEvent,
    BranchPolicy,
    CallView,
    Finished,
    FirstTokens,
    Fork,
    Group,
    Idle,
    Need,
    RolloutStep,
    Segment,
    Start,
    StartRoots,
    Task,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJob:
    """One task whose group of rollouts is to be run."""

    task: Task
    name: str  # the task's part of rollout keys; unique within the step
    step: int
    prompt: Segment


class GroupScheduler:
    """Runs one group. `release` is called once per rollout, when neither it nor a fork needs its prefix any more."""

    def __init__(
        self,
        *,
        job: GroupJob,
        rollout_step: RolloutStep,
        policy: BranchPolicy,
        context: GroupContext,
        config: RolloutConfig,
        step_ends_at: float,
        deterministic: bool,
        tasks: asyncio.TaskGroup,
        release: Callable[[Sequence[str]], None],
    ) -> None:
        self.job = job
        self.policy = policy
        self.context = context
        self.deterministic = deterministic
        self._reads_entropies = Need.ENTROPY in getattr(policy, "needs", frozenset())  # of a long turn they are many
        self.history = GroupHistory(job.task, context.plan.group_size, context.encoder.vocab_size)
        self._order: EventOrder = LogicalOrder() if deterministic else ArrivalOrder()
        self._live: dict[BranchPath, LiveRollout] = {}
        self._n_roots = 0
        self._tasks = tasks
        self._release = release
        self._unreleased: set[BranchPath] = set()  # rollouts whose prefix the engine keeps
        self._ended: set[BranchPath] = set()
        self._pending_forks: dict[BranchPath, int] = {}  # number of forks that have not sampled yet, by parent
        self._done = asyncio.Event()
        self._closed = False
        self._running: set[asyncio.Task[None]] = set()
        self.states = self._open_states(rollout_step) if context.stateful else None
        self._runner = RolloutRunner(
            task=job.task,
            step=rollout_step,
            context=context,
            states=self.states,
            config=config,
            step_ends_at=step_ends_at,
            on_first=self._on_first,
            on_turn=self._on_turn,
        )

    async def run(self) -> Group:
        try:
            self._ask(Start(), self._key(), 0)
            self._decide_pending()
            await self._done.wait()
        finally:
            self._closed = True
            self._release_prefixes(sorted(self._unreleased))
            if self.states is not None:
                await self._close_states(self.states)
        return group_of(self.job.task, list(self._live.values()))

    def _open_states(self, rollout_step: RolloutStep) -> States:
        return States(
            self.context.stateful,
            task=self.job.task,
            seed=self.context.seed,
            policy=self.policy,
            budget_left=lambda: self.history.budget_left,
            replay=Replayer(self.context, rollout_step),
            watchdog=self.context.watchdog,
        )

    def _key(self, path: BranchPath = ()) -> RolloutKey:
        return RolloutKey(self.context.plan.salt, self.job.step, self.job.name, path_text(path))

    async def _run_rollout(self, live: LiveRollout) -> None:
        await self._runner.run(live)
        live.finished = True
        if self.states is not None:
            self.states.ended(live)
        self._report(
            RolloutEvent(live.path, Phase.END, live.turn, stop=live.stop_reason, **self._turn_summary(live, live.turn))
        )

    async def _close_states(self, states: States) -> None:
        """Rollouts are still running if the group failed: they end first, since they use their states."""
        for running in self._running:
            running.cancel()
        if self._running:
            await asyncio.wait(self._running)
        await states.close()

    def _on_first(self, live: LiveRollout, turn: int, entropies: tuple[float, ...]) -> None:
        self._report(RolloutEvent(live.path, Phase.FIRST, turn, entropies=entropies))

    def _on_turn(self, live: LiveRollout) -> None:
        self._report(RolloutEvent(live.path, Phase.BEGIN, live.turn, **self._turn_summary(live, live.turn - 1)))

    def _turn_summary(self, live: LiveRollout, turn: int) -> _TurnSummary:
        if not self.history.budget_left:  # the policy is not asked any more
            return {"n_tokens": 0, "entropies": (), "calls": ()}
        sampled = [s for s in live.segments[live.starts[turn] :] if s.is_sampled]
        calls = [c for c in live.tool_calls if c.turn == turn]
        read = sampled if self._reads_entropies else ()
        return {
            "n_tokens": sum(len(s) for s in sampled),
            "entropies": tuple(entropy for s in read for entropy in s.entropies or ()),
            "calls": tuple(CallView(name=c.name, status=c.status, truncated=c.truncated) for c in calls),
        }

    def _report(self, event: RolloutEvent) -> None:
        """Called from engines' callbacks too, where an error must not surface: it stops the run instead."""
        if self._closed:
            return
        try:
            self._release_parent(self._live[event.path])
            self._order.push(event)
            self._decide_pending()
        except Exception as error:
            self._tasks.create_task(_fail(error))

    def _decide_pending(self) -> None:
        """Decide all events that can be decided now; if no rollout runs then, use the rest of the budget or end."""
        while True:
            while (event := self._order.pop()) is not None:
                self._apply(event)
            if self.history.n_live:
                return
            if not self.history.budget_left:
                self._done.set()
                return
            self._fill()

    def _apply(self, event: RolloutEvent) -> None:
        live = self._live[event.path]
        if self.history.budget_left:
            self.history.apply(event)
            if (branch_event := _branch_event(event, live)) is not None:
                self._ask(branch_event, live.key, event.turn)
        else:
            self.history.count(event)
        if event.phase is Phase.BEGIN and self.states is not None:
            self.states.decided(event.path, event.turn)
        if event.phase is Phase.END:
            self._ended.add(event.path)
            self._release_if_unneeded(event.path)

    def _fill(self) -> None:
        """Nothing runs and budget is left: the policy is asked how to use it, else it goes to fresh roots.

        Roots of either kind have `filled` in their `stats`.
        """
        before = self._n_roots
        self._ask(Idle(), self._key(), self.history.n_started)
        if not self.history.n_live:
            self._start_roots(self.history.budget_left)
        for root in range(before, self._n_roots):
            self._live[(self.context.plan.root(root),)].add_stat("filled", 1)

    def _ask(self, event: BranchEvent, key: RolloutKey, turn: int) -> None:
        rng = branch_rng(self.context.seed, key, type(event).__name__, turn)
        for action in ask(self.policy, event, self.history.view(), rng, stateful=self.states is not None):
            if isinstance(action, StartRoots):
                self._start_roots(action.n)
            else:
                self._start_forks(action)
        if self.states is not None and not self.history.budget_left:
            self.states.close_unneeded()

    def _start_roots(self, n: int) -> None:
        for _ in range(n):
            path = (self.context.plan.root(self._n_roots),)
            self._n_roots += 1
            self.history.add_root(path)
            self._start(new_root(self._key(path), self.job.prompt))

    def _start_forks(self, fork: Fork) -> None:
        parent = self._live[path_of(fork.rollout)]
        while parent.parent is not None and fork.turn < (parent.fork_turn or 0):
            parent = parent.parent  # a turn before its own is an ancestor's
        for _ in range(fork.n):
            live = parent.fork(fork.turn)
            self._pending_forks[parent.path] = self._pending_forks.get(parent.path, 0) + 1
            self.history.add_fork(live.path, fork.turn)
            self._start(live)

    def _start(self, live: LiveRollout) -> None:
        self._live[live.path] = live
        self._unreleased.add(live.path)
        self._order.start(live.path, live.turn)
        if self.states is not None:
            (self.states.root if live.parent is None else self.states.fork)(live)
        running = self._tasks.create_task(self._run_rollout(live), name=f"rollout {live.key}")
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    def _release_parent(self, live: LiveRollout) -> None:
        """A fork that has sampled, or ended, no longer needs its parent's prefix."""
        if live.parent is not None and not live.sampled:
            self._pending_forks[live.parent.path] -= 1
            self._release_if_unneeded(live.parent.path)
        live.sampled = True

    def _release_if_unneeded(self, path: BranchPath) -> None:
        """In a deterministic run prefixes stay until the group ends: a late fork must find the same, whatever ran."""
        needed = self.deterministic or self._pending_forks.get(path) or path not in self._ended
        if not needed and path in self._unreleased:
            self._release_prefixes([path])

    def _release_prefixes(self, paths: Sequence[BranchPath]) -> None:
        self._unreleased.difference_update(paths)
        self._release([str(self._live[path].key) for path in paths])


async def _fail(error: Exception) -> None:
    raise error


class _TurnSummary(TypedDict):
    """What a `RolloutEvent` holds of a turn that is over."""

    n_tokens: int
    entropies: tuple[float, ...]
    calls: tuple[CallView, ...]


def _branch_event(event: RolloutEvent, live: LiveRollout) -> BranchEvent | None:
    match event.phase:
        case Phase.BEGIN:
            return AfterTool(rollout=live.key.path, turn=event.turn, calls=event.calls)
        case Phase.END:
            return Finished(rollout=live.key.path, stop=live.stop_reason)
        case Phase.FIRST if live.fork_turn != event.turn:
            return FirstTokens(rollout=live.key.path, turn=event.turn, entropies=event.entropies)
    return None
