"""One group of rollouts: which are started when. There is no barrier: one asyncio task per rollout.

Whatever happens to a rollout becomes a `RolloutEvent`; the event order gives the one that is decided next; the group's
history is brought up to date with it; the branch policy is asked; and what it answers is started at once. The core
enforces the budget, so a group always ends with exactly as many rollouts as were asked for, masked and stopped ones
included, less those that the policy left on purpose (`Done`), which are never replaced by copies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ramet.config.schema import RolloutConfig
from ramet.rollout.branching.decisions import ask
from ramet.rollout.branching.event_order import ArrivalOrder, EventOrder, LogicalOrder
from ramet.rollout.branching.events import Phase, RolloutEvent, branch_event, turn_ended
from ramet.rollout.branching.group_history import GroupHistory
from ramet.rollout.group_context import GroupContext
from ramet.rollout.jobs import GroupJob
from ramet.rollout.keys import BranchPath, RolloutKey, branch_rng, path_of, path_text
from ramet.rollout.prefix_release import PrefixRelease
from ramet.rollout.replayer import Replayer
from ramet.rollout.runner import RolloutRunner
from ramet.rollout.states import States
from ramet.rollout.tree import LiveRollout, group_of, new_root, split
from ramet.types import (
    BranchAction,
    BranchEvent,
    BranchPolicy,
    Done,
    Fork,
    Group,
    Idle,
    Need,
    Rollout,
    RolloutScore,
    RolloutStep,
    Start,
    StartFrom,
    StartRoots,
    Stop,
)

ScoreRollout = Callable[[Rollout], Awaitable[RolloutScore]]


class GroupScheduler:
    """Runs one group. `release` is called once per rollout, when neither it nor a fork needs its prefix any more.

    `score` is asked for each rollout as soon as it ended, if the policy needs rewards.
    """

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
        score: ScoreRollout | None = None,
    ) -> None:
        self.job = job
        self.policy = policy
        self.context = context
        self.deterministic = deterministic
        self._needs: frozenset[Need] = getattr(policy, "needs", frozenset())
        self._score = score if Need.REWARDS in self._needs else None
        last = Phase.END if self._score is None else Phase.SCORED
        self.history = GroupHistory(
            job.task,
            context.plan.group_size,
            context.encoder.vocab_size,
            last,
            prefixes=[prefix.view for prefix in job.prefixes],
        )
        self._order: EventOrder = LogicalOrder(last) if deterministic else ArrivalOrder()
        self._live: dict[BranchPath, LiveRollout] = {}
        self._n_roots = 0
        self._tasks = tasks
        self._prefixes = PrefixRelease(
            lambda paths: release([self._live[p].key.text for p in paths]), keep=deterministic
        )
        self._done = asyncio.Event()
        self._closed = False
        self._started: dict[BranchPath, asyncio.Task[None]] = {}
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
            self._prefixes.release_all()
            if self.states is not None:
                await self._close_states(self.states)
        group = group_of(self.job.task, list(self._live.values()), n_unused=self.history.n_unused)
        self._live.clear()  # in cycles with their tasks: all of it would wait for the garbage collector
        self._started.clear()
        return group

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
        self.context.counts.done += 1
        if self.states is not None:
            self.states.ended(live)
        if live.is_pruned:
            live.cut(live.turn)  # a call that ended in the same moment may have left its record
            return
        self._report(live, self._turn_ended(live, live.turn, Phase.END))
        if self._score is not None:
            with self.context.watchdog.wait(f"score of rollout {live.key}"):
                score = await self._score(live.freeze(self.job.task))
            if live.is_pruned:
                return  # meanwhile, and the reward caught its cancellation
            live.score = score
            self._report(live, RolloutEvent(live.path, Phase.SCORED, live.turn, reward=score.reward))

    async def _close_states(self, states: States) -> None:
        """Rollouts are still running if the group failed: they end first, since they use their states."""
        running = [task for task in self._started.values() if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        await states.close()

    def _on_first(self, live: LiveRollout, turn: int, entropies: tuple[float, ...]) -> None:
        matters = self._matters_before_end
        self._report(live, RolloutEvent(live.path, Phase.FIRST, turn, entropies=entropies) if matters else None)

    def _on_turn(self, live: LiveRollout) -> None:
        self._report(live, self._turn_ended(live, live.turn - 1, Phase.BEGIN) if self._matters_before_end else None)

    def _turn_ended(self, live: LiveRollout, turn: int, phase: Phase) -> RolloutEvent:
        return turn_ended(live, turn, phase, summary=self._asks, entropies=Need.ENTROPY in self._needs)

    @property
    def _asks(self) -> bool:
        """Whether the policy is still asked."""
        return self.history.budget_left > 0 or Need.LATE_EVENTS in self._needs

    @property
    def _matters_before_end(self) -> bool:
        """Whether anything depends on what happens before a rollout's end: decisions, or the states of its tools."""
        return self._asks or self.states is not None

    def _report(self, live: LiveRollout, event: RolloutEvent | None) -> None:
        """Called from engines' callbacks too, where an error must not surface: it stops the run instead.

        `event` None: what happened is of no matter for the group, only that the rollout has sampled.
        """
        if self._closed or live.is_pruned:
            return
        try:
            self._note_sampled(live)
            if event is not None:
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
        if self._asks:
            self.history.apply(event)
            if (told := branch_event(event, live)) is not None:
                self._ask(told, live.key, event.turn)
        else:
            self.history.count(event)
        if event.phase is Phase.BEGIN and self.states is not None:
            self.states.decided(event.path, event.turn)
        if event.phase is Phase.END:
            self._prefixes.ended(event.path)

    def _fill(self) -> None:
        """Nothing runs and budget is left: the policy is asked how to use it, else it goes to fresh roots.

        Roots of either kind have `filled` in their `stats`.
        """
        before = self._n_roots
        self._ask(Idle(), self._key(), self.history.n_started)
        if not self.history.n_live:  # or nothing, where it left the rest
            self._start_roots(self.history.budget_left)
        for root in range(before, self._n_roots):
            self._live[(self.context.plan.root(root),)].add_stat("filled", 1)

    def _ask(self, event: BranchEvent, key: RolloutKey, turn: int) -> None:
        rng = branch_rng(self.context.seed, key, type(event).__name__, turn)
        for action in ask(self.policy, event, self.history.view(), rng, stateful=self.states is not None):
            self._act(action)
        if self.states is not None and not self.history.budget_left:
            self.states.close_unneeded()

    def _act(self, action: BranchAction) -> None:
        match action:
            case StartRoots():
                self._start_roots(action.n)
            case StartFrom():
                self._start_from(action)
            case Fork():
                self._start_forks(action)
            case Stop():
                self._stop(path_of(action.rollout))
            case Done():
                self.history.leave_rest()

    def _start_roots(self, n: int) -> None:
        for _ in range(n):
            path = self._new_path()
            self.history.add_root(path)
            self._start(new_root(self._key(path), self.job.prompt))

    def _start_from(self, start: StartFrom) -> None:
        prefix = self.job.prefixes[start.prefix]
        for _ in range(start.n):
            path = self._new_path()
            self.history.add_root(path, start.prefix, prefix.turns)
            self._start(prefix.begin(self._key(path), self.job.prompt))

    def _new_path(self) -> BranchPath:
        """Of the next rollout that is no fork."""
        self._n_roots += 1
        return (self.context.plan.root(self._n_roots - 1),)

    def _start_forks(self, fork: Fork) -> None:
        parent = self._live[path_of(fork.rollout)]
        while parent.parent is not None and (fork.turn, fork.token) < (parent.fork_turn or 0, parent.fork_token):
            parent = parent.parent  # what is before its own beginning is an ancestor's
        if fork.token:
            split(self._live.values(), parent, fork.turn, fork.token, self.context.encoder)
        for _ in range(fork.n):
            live = parent.fork(fork.turn, fork.token)
            self.context.counts.forks += 1
            self.history.add_fork(live.path, fork.turn, fork.token)
            self._start(live)

    def _start(self, live: LiveRollout) -> None:
        self._live[live.path] = live
        self._prefixes.hold(live.path, None if live.parent is None else live.parent.path)
        self._order.start(live.path, live.turn)
        if self.states is not None:
            (self.states.root if live.parent is None else self.states.fork)(live)
        self._started[live.path] = self._tasks.create_task(self._run_rollout(live), name=f"rollout {live.key.text}")

    def _stop(self, path: BranchPath) -> None:
        """End a rollout now. What it did after the turn that the policy knows of never happened."""
        live = self._live[path]
        self._order.drop(path)
        live.cut(self.history.prune(path))
        self._note_sampled(live)
        self._prefixes.ended(path)
        self._started[path].cancel()  # one that has ended stays as it is

    def _note_sampled(self, live: LiveRollout) -> None:
        """A fork that has sampled, or ended, no longer needs its parent's prefix."""
        if live.parent is not None and not live.sampled:
            self._prefixes.fork_sampled(live.parent.path)
        live.sampled = True


async def _fail(error: Exception) -> None:
    raise error
