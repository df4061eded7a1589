"""One group of rollouts: which are started when. There is no barrier: one asyncio task per rollout.

Whatever happens to a rollout becomes a note; the event order (`gate`) says which note is decided next; the ledger is
brought up to date with it; the branch policy is asked; and what it answers is started at once. The core enforces the
budget, so a group always ends with exactly as many rollouts as were asked for, masked ones included.
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
    """One task to be played."""

    task: Task
    name: str  # the task's part of rollout keys; unique within the step
    step: int
    prompt: Segment


class GroupScheduler:
    """Plays one group. `retire` is called once per rollout, when neither it nor a fork needs its prefix any more."""

    def __init__(
        self,
        *,
        job: GroupJob,
        rollout_step: RolloutStep,
        policy: BranchPolicy,
        place: GroupContext,
        config: RolloutConfig,
        step_ends_at: float,
        deterministic: bool,
        tasks: asyncio.TaskGroup,
        retire: Callable[[Sequence[str]], None],
    ) -> None:
        self.job = job
        self.policy = policy
        self.place = place
        self.deterministic = deterministic
        self._reads_entropies = Need.ENTROPY in getattr(policy, "needs", frozenset())  # of long turns there are many
        self.ledger = GroupHistory(job.task, place.plan.group_size, place.encoder.vocab_size)
        self._order: EventOrder = LogicalOrder() if deterministic else ArrivalOrder()
        self._live: dict[BranchPath, LiveRollout] = {}
        self._n_roots = 0
        self._tasks = tasks
        self._retire = retire
        self._held: set[BranchPath] = set()  # rollouts that are not retired
        self._ended: set[BranchPath] = set()
        self._heirs: dict[BranchPath, int] = {}  # forks that have not sampled yet, by parent
        self._done = asyncio.Event()
        self._closed = False
        self._playing: set[asyncio.Task[None]] = set()
        self.states = self._open_states(rollout_step) if place.stateful else None
        self._player = RolloutRunner(
            task=job.task,
            step=rollout_step,
            place=place,
            states=self.states,
            config=config,
            step_ends_at=step_ends_at,
            on_first=self._on_first,
            on_turn=self._on_turn,
        )

    async def run(self) -> Group:
        try:
            self._ask(Start(), self._key(), 0)
            self._drain()
            await self._done.wait()
        finally:
            self._closed = True
            self._let_go(sorted(self._held))
            if self.states is not None:
                await self._close_states(self.states)
        return group_of(self.job.task, list(self._live.values()))

    def _open_states(self, rollout_step: RolloutStep) -> States:
        return States(
            self.place.stateful,
            task=self.job.task,
            seed=self.place.seed,
            policy=self.policy,
            budget_left=lambda: self.ledger.budget_left,
            replay=Replayer(self.place, rollout_step),
            watchdog=self.place.watchdog,
        )

    def _key(self, path: BranchPath = ()) -> RolloutKey:
        return RolloutKey(self.place.plan.salt, self.job.step, self.job.name, path_text(path))

    async def _play(self, live: LiveRollout) -> None:
        await self._player.play(live)
        live.finished = True
        if self.states is not None:
            self.states.ended(live)
        self._tell(
            RolloutEvent(live.path, Phase.END, live.turn, stop=live.stop_reason, **self._of_turn(live, live.turn))
        )

    async def _close_states(self, states: States) -> None:
        """Rollouts are still running if the group failed: they end first, since they use their states."""
        for playing in self._playing:
            playing.cancel()
        if self._playing:
            await asyncio.wait(self._playing)
        await states.close()

    def _on_first(self, live: LiveRollout, turn: int, entropies: tuple[float, ...]) -> None:
        self._tell(RolloutEvent(live.path, Phase.FIRST, turn, entropies=entropies))

    def _on_turn(self, live: LiveRollout) -> None:
        self._tell(RolloutEvent(live.path, Phase.BEGIN, live.turn, **self._of_turn(live, live.turn - 1)))

    def _of_turn(self, live: LiveRollout, turn: int) -> _OfTurn:
        sampled = [s for s in live.segments[live.starts[turn] :] if s.is_sampled]
        calls = [c for c in live.tool_calls if c.turn == turn]
        read = sampled if self._reads_entropies else ()
        return {
            "n_tokens": sum(len(s) for s in sampled),
            "entropies": tuple(entropy for s in read for entropy in s.entropies or ()),
            "calls": tuple(CallView(name=c.name, status=c.status, truncated=c.truncated) for c in calls),
        }

    def _tell(self, note: RolloutEvent) -> None:
        """Called from engines' callbacks too, where an error must not surface: it stops the run instead."""
        if self._closed:
            return
        try:
            self._has_sampled(self._live[note.path])
            self._order.push(note)
            self._drain()
        except Exception as error:
            self._tasks.create_task(_fail(error))

    def _drain(self) -> None:
        """Decide all notes that can be decided now, and go on when the group stands still."""
        while True:
            while (note := self._order.pop()) is not None:
                self._apply(note)
            if self.ledger.n_live:
                return
            if not self.ledger.budget_left:
                self._done.set()
                return
            self._fill()

    def _apply(self, note: RolloutEvent) -> None:
        self.ledger.apply(note)
        live = self._live[note.path]
        if self.ledger.budget_left and (event := _event_of(note, live)) is not None:
            self._ask(event, live.key, note.turn)
        if note.phase is Phase.BEGIN and self.states is not None:
            self.states.decided(note.path, note.turn)
        if note.phase is Phase.END:
            self._ended.add(note.path)
            self._let_go_early(note.path)

    def _fill(self) -> None:
        """Nothing runs and budget is left: the policy may say how to use it, else it goes to fresh roots.

        Roots of either kind say so in their `stats`: `filled`.
        """
        before = self._n_roots
        self._ask(Idle(), self._key(), self.ledger.n_started)
        if not self.ledger.n_live:
            self._start_roots(self.ledger.budget_left)
        for root in range(before, self._n_roots):
            self._live[(self.place.plan.root(root),)].add_stat("filled", 1)

    def _ask(self, event: BranchEvent, key: RolloutKey, turn: int) -> None:
        rng = branch_rng(self.place.seed, key, type(event).__name__, turn)
        for action in ask(self.policy, event, self.ledger.view(), rng, stateful=self.states is not None):
            if isinstance(action, StartRoots):
                self._start_roots(action.n)
            else:
                self._start_forks(action)
        if self.states is not None and not self.ledger.budget_left:
            self.states.tidy()

    def _start_roots(self, n: int) -> None:
        for _ in range(n):
            path = (self.place.plan.root(self._n_roots),)
            self._n_roots += 1
            self.ledger.add_root(path)
            self._start(new_root(self._key(path), self.job.prompt))

    def _start_forks(self, fork: Fork) -> None:
        parent = self._live[path_of(fork.rollout)]
        while parent.parent is not None and fork.turn < (parent.fork_turn or 0):
            parent = parent.parent  # a turn before its own is an ancestor's
        for _ in range(fork.n):
            live = parent.fork(fork.turn)
            self._heirs[parent.path] = self._heirs.get(parent.path, 0) + 1
            self.ledger.add_fork(live.path, fork.turn)
            self._start(live)

    def _start(self, live: LiveRollout) -> None:
        self._live[live.path] = live
        self._held.add(live.path)
        self._order.start(live.path, live.turn)
        if self.states is not None:
            (self.states.root if live.parent is None else self.states.fork)(live)
        playing = self._tasks.create_task(self._play(live), name=f"rollout {live.key}")
        self._playing.add(playing)
        playing.add_done_callback(self._playing.discard)

    def _has_sampled(self, live: LiveRollout) -> None:
        """A fork's first news: it no longer needs its parent's prefix."""
        if live.parent is not None and not live.sampled:
            self._heirs[live.parent.path] -= 1
            self._let_go_early(live.parent.path)
        live.sampled = True

    def _let_go_early(self, path: BranchPath) -> None:
        """In a deterministic run prefixes stay until the group ends: a late fork must find the same, whatever ran."""
        needed = self.deterministic or self._heirs.get(path) or path not in self._ended
        if not needed and path in self._held:
            self._let_go([path])

    def _let_go(self, paths: Sequence[BranchPath]) -> None:
        self._held.difference_update(paths)
        self._retire([str(self._live[path].key) for path in paths])


async def _fail(error: Exception) -> None:
    raise error


class _OfTurn(TypedDict):
    """What a note tells of a turn that is over."""

    n_tokens: int
    entropies: tuple[float, ...]
    calls: tuple[CallView, ...]


def _event_of(note: RolloutEvent, live: LiveRollout) -> BranchEvent | None:
    match note.phase:
        case Phase.BEGIN:
            return AfterTool(rollout=live.key.path, turn=note.turn, calls=note.calls)
        case Phase.END:
            return Finished(rollout=live.key.path, stop=live.stop_reason)
        case Phase.FIRST if live.fork_turn != note.turn:
            return FirstTokens(rollout=live.key.path, turn=note.turn, entropies=note.entropies)
    return None
