"""One group of rollouts, and when each starts. There is no barrier: one asyncio task per rollout.

Every change of a rollout becomes a `RolloutEvent`. The event order gives the next event. The group's history gets it,
the branch policy is asked, and its actions start at once. The core enforces the budget: a group ends with exactly as
many rollouts as were asked for, masked and stopped ones included. Only a policy may leave some out (`Done`); copies
never replace them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ramet.errors import ConfigError, InfraError, PluginError
from ramet.event_loop import is_cancelled
from ramet.io import repeats
from ramet.plugins import origin
from ramet.plugins.output_checks import begin_problem, state_key_problem
from ramet.plugins.plugin_code import defined_at, named, raised_at
from ramet.rollout.agents.group import AgentGroup
from ramet.rollout.branching.decisions import ask
from ramet.rollout.branching.event_order import ArrivalOrder, EventOrder, LogicalOrder
from ramet.rollout.branching.events import Phase, RolloutEvent, branch_event, turn_ended
from ramet.rollout.branching.group_history import GroupHistory
from ramet.rollout.faults import DEFECT, RolloutFailed, is_defect
from ramet.rollout.group_context import GroupContext
from ramet.rollout.jobs import GroupJob
from ramet.rollout.keys import BranchPath, RolloutKey, branch_rng, path_of, path_text
from ramet.rollout.replayer import Replayer
from ramet.rollout.stateful import ENVIRONMENT
from ramet.rollout.states import States
from ramet.rollout.tree import LiveRollout, group_of, new_root, split
from ramet.rollout.turn import RolloutTurn, add_metrics, checked_result, end_if_pruned, first_inserts, insert
from ramet.types import (
    BranchAction,
    BranchEvent,
    BranchPolicy,
    Done,
    Fault,
    Fork,
    Group,
    Idle,
    Need,
    Rollout,
    RolloutScore,
    Start,
    StartFrom,
    StartRoots,
    StepResult,
    Stop,
)
from ramet.types.branch import policy_needs

logger = logging.getLogger(__name__)

ScoreRollout = Callable[[Rollout], Awaitable[RolloutScore]]


@dataclass(slots=True, eq=False)
class _Member:
    """One rollout of the group, and whether the engine may forget its prefix: neither it nor a fork needs it then."""

    live: LiveRollout
    task: asyncio.Task[None] | None = None
    has_ended: bool = False
    n_waiting_forks: int = 0  # that have not sampled yet
    is_released: bool = False


class GroupScheduler:
    """Runs one group. `release` is called once per rollout, when neither it nor a fork needs its prefix any more.

    `score` is asked for each rollout as soon as it ended, if the policy needs rewards.
    """

    def __init__(
        self,
        *,
        job: GroupJob,
        policy: BranchPolicy,
        context: GroupContext,
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
        self._needs = policy_needs(policy)
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
        self._members: dict[BranchPath, _Member] = {}
        self._n_roots = 0
        self._step_ends_at = step_ends_at  # in the event loop's time
        self._tasks = tasks
        self._release = release
        self._done = asyncio.Event()
        self._closed = False
        self.states = self._open_states() if context.stateful else None
        self._agents = (
            None
            if context.agents is None
            else AgentGroup(context, context.agents, self._report, deterministic=deterministic)
        )
        self._hooks: Any = context.step if self.states is not None and ENVIRONMENT in self.states else None

    async def run(self) -> Group:
        try:
            self._ask(Start(), self._own_key, 0)
            self._decide_pending()
            await self._done.wait()
        finally:
            self._closed = True
            self._release_all()
            if self.states is not None:
                await self._close_states(self.states)
            if self._agents is not None:
                self._agents.close()
        live = [member.live for member in self._members.values()]
        self._members.clear()  # in cycles with their tasks: all of it would wait for the garbage collector
        return group_of(self.job.task, live, n_unused=self.history.n_unused)

    def _open_states(self) -> States:
        return States(
            self.context.stateful,
            task=self.job.task,
            seed=self.context.seed,
            policy=self.policy,
            budget_left=lambda: self.history.budget_left,
            replay=Replayer(self.context),
            watchdog=self.context.watchdog,
        )

    async def _close_states(self, states: States) -> None:
        """Rollouts are still running if the group failed: they end first, since they use their states."""
        running = [member.task for member in self._members.values() if member.task and not member.task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        await states.close()

    @property
    def _own_key(self) -> RolloutKey:
        """The group's. A step budget may give a task several groups in a step: the later ones have their first root's
        number in it, or a policy would draw the same for each.
        """
        first = self.context.plan.root(0)
        return self._key((first,) if first else ())

    def _key(self, path: BranchPath) -> RolloutKey:
        return RolloutKey(self.context.plan.salt, self.job.step, self.job.name, path_text(path))

    async def _play(self, live: LiveRollout) -> None:
        """Run a rollout from its present state to its stop: generate, append, tool, append, and into the next turn.

        Failures stay here: whatever goes wrong with one rollout masks that rollout. Only a broken contract
        (`PluginError`) or a user's mistake (`ConfigError`) leaves this function.
        """
        started, loop, context = time.perf_counter(), asyncio.get_running_loop(), self.context
        if context.observer is not None and live.parent is None:
            context.observer.began(live.key.path, live.segments[0])
        live.ends_at = min(loop.time() + context.config.deadline_s, self._step_ends_at)
        limit = asyncio.timeout_at(live.ends_at)
        try:
            async with limit:
                if live.ends_at <= loop.time():
                    await asyncio.sleep(0)  # the time-out is raised here, before anything is sampled
                if self._agents is not None:
                    await self._agents.play(live, live.ends_at - loop.time())
                else:
                    await self._play_turns(live)
        except ConfigError as error:
            raise named(error, f"rollout step {origin(context.step)}", "rollout_step") from error
        except PluginError:
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled() and not live.is_pruned:
                raise
            live.fault = None if live.is_pruned else self._fault(error, live, limit)
        if not live.is_pruned:
            live.add_stat("seconds", time.perf_counter() - started)
        await self._end(live)

    async def _play_turns(self, live: LiveRollout) -> None:
        """Ask the rollout step for turn after turn."""
        await self._begin(live)
        while live.stop is None:
            environment = await self._begin_turn(live)
            turn = RolloutTurn(live, self.context, environment, states=self.states, report=self._report)
            result = StepResult()
            async with turn:
                result = await self.context.step(turn.state, turn)
            turn.end(result)
            if live.stop is None:
                live.begin_turn()
                self._report(live, Phase.BEGIN, live.turn - 1)
        await self._finish(live)

    def _fault(self, error: BaseException, live: LiveRollout, limit: asyncio.Timeout) -> Fault:
        """Return the fault that masks the rollout: the error's own, or one of the rollout step."""
        config, step = self.context.config, self.context.step
        if isinstance(error, TimeoutError) and limit.expired():
            of_step = live.ends_at == self._step_ends_at
            key = "rollout.step_deadline_s" if of_step else "rollout.deadline_s"
            value = config.step_deadline_s if of_step else config.deadline_s
            fault = Fault(where="deadline", message=f"not finished within {key}={value:g} (turn {live.turn})")
        elif isinstance(error, RolloutFailed):
            fault = error.fault
        else:
            raised = f"raised {type(error).__name__}: {error}{raised_at(error)}"
            fault = Fault(where="step", message=f"{self.context.step_name} {raised}")
            if is_defect(error):
                fault = Fault(where=f"{DEFECT}step", message=f"rollout step {origin(step)} {raised}")
        repeats.warn(
            logger,
            f"rollouts masked by {fault.where}",
            "rollout %s is masked: %s: %s",
            live.key,
            fault.where,
            fault.message,
            trace=logger.isEnabledFor(logging.DEBUG),
        )
        return fault

    async def _begin(self, live: LiveRollout) -> None:
        """Open what a fork copies. A root of an environment gets its first observation, which its forks share."""
        if self.states is None:
            return
        await self.states.start(live)
        if live.parent is not None or live.prefix is not None or not hasattr(self._hooks, "begin"):
            return
        first = await self._hooks.begin(await self.states.use(live, ENVIRONMENT))
        if (problem := begin_problem(first)) is not None:
            raise PluginError(f"rollout step {origin(self._hooks)}: {problem}{defined_at(self._hooks, 'begin')}")
        if not insert(live, first_inserts(first, live, self.context), self.context):
            raise InfraError(f"the first observation of {self.context.step_name} leaves no room for a response")
        live.turns[0].start = len(live.segments)

    async def _begin_turn(self, live: LiveRollout) -> Any:
        """The state of the rollout step, which may have a name; None if the step has none."""
        if self._hooks is None or self.states is None:
            return None
        state = await self.states.use(live, ENVIRONMENT)
        if hasattr(self._hooks, "state_key"):
            key = live.turns[-1].state_key = self._hooks.state_key(state)
            if (problem := state_key_problem(key)) is not None:
                line = defined_at(self._hooks, "state_key")
                raise PluginError(f"rollout step {origin(self._hooks)}: {problem}{line}")
        return state

    async def _finish(self, live: LiveRollout) -> None:
        """Add what an environment gives for the end to the last turn."""
        end_if_pruned(live)
        if self.states is None or not hasattr(self._hooks, "finish"):
            return
        result = await self._hooks.finish(await self.states.use(live, ENVIRONMENT), live.stop)
        if result is None:
            return
        result = checked_result(result, self.context)
        if result.insert or result.stop is not None:
            raise PluginError(
                f"finish of {self.context.step_name} returned insert or stop; the rollout has ended already"
            )
        add_metrics(live, result.metrics)
        live.record_end(result.info, result.reward)
        if result.answer is not None:
            live.answer = result.answer

    async def _end(self, live: LiveRollout) -> None:
        """The rollout is over: it is scored while others run, if the policy needs that."""
        live.finished = True
        self.context.counts.done += 1
        if self.states is not None:
            self.states.ended(live)
        if live.is_pruned:
            live.cut(live.turn)  # a call that ended in the same moment may have left its record
            return
        self._report(live, Phase.END, live.turn)
        if self._score is not None:
            with self.context.watchdog.wait(f"score of rollout {live.key}"):
                score = await self._score(live.freeze(self.job.task))
            if live.is_pruned:
                return  # meanwhile, and the reward caught its cancellation
            live.score = score
            self._report(live, Phase.SCORED, live.turn)

    @property
    def _asks(self) -> bool:
        """Whether the policy is still asked."""
        return self.history.budget_left > 0 or Need.LATE_EVENTS in self._needs

    def _report(self, live: LiveRollout, phase: Phase, turn: int, entropies: tuple[float, ...] = ()) -> None:
        """Called from engines' callbacks too, where an error must not surface: it stops the run instead.

        `turn`: the one that this happened in. What happens before a rollout's end matters for decisions and states.
        """
        if self._closed or live.is_pruned:
            return
        try:
            self._note_sampled(live)
            if phase >= Phase.END or self._asks or self.states is not None:
                self._order.push(self._event(live, phase, turn, entropies))
                self._decide_pending()
        except Exception as error:
            self._tasks.create_task(_fail(error))

    def _event(self, live: LiveRollout, phase: Phase, turn: int, entropies: tuple[float, ...]) -> RolloutEvent:
        if phase is Phase.FIRST:
            return RolloutEvent(live.path, phase, turn, entropies=entropies)
        if phase is Phase.SCORED:
            return RolloutEvent(live.path, phase, turn, reward=live.score.reward if live.score else None)
        return turn_ended(live, turn, phase, summary=self._asks, entropies=Need.ENTROPY in self._needs)

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
        member = self._members[event.path]
        if self._asks:
            self.history.apply(event)
            if (policy_event := branch_event(event, member.live)) is not None:
                self._ask(policy_event, member.live.key, event.turn)
        else:
            self.history.count(event)
        if event.phase is Phase.BEGIN and self.states is not None:
            self.states.decided(member.live, event.turn)
        if event.phase is Phase.END:
            self._end_prefix(member)

    def _fill(self) -> None:
        """Use the budget that is left when no rollout runs: as the policy says, otherwise for fresh roots.

        Roots of either kind have `filled` in their `stats`.
        """
        before = self._n_roots
        self._ask(Idle(), self._own_key, self.history.n_started)
        if not self.history.n_live:  # or nothing, where it left the rest
            self._start_roots(self.history.budget_left)
        for root in range(before, self._n_roots):
            self._members[(self.context.plan.root(root),)].live.add_stat("filled", 1)

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
        begin, prompt = self.job.begin, self.job.prompt
        for _ in range(n):
            path = self._new_path()
            self.history.add_root(path, turns=() if begin is None else begin.turns)
            key = self._key(path)
            self._start(new_root(key, prompt) if begin is None else begin.begin(key, prompt))

    def _start_from(self, start: StartFrom) -> None:
        prefix = self.job.prefixes[start.prefix]
        for _ in range(start.n):
            path = self._new_path()
            self.history.add_root(path, start.prefix, prefix.turns)
            self._start(prefix.begin(self._key(path), self.job.prompt))

    def _new_path(self) -> BranchPath:
        """Return the path of the next rollout that is not a fork."""
        self._n_roots += 1
        return (self.context.plan.root(self._n_roots - 1),)

    def _start_forks(self, fork: Fork) -> None:
        parent = self._members[path_of(fork.rollout)].live
        while parent.parent is not None and (fork.turn, fork.token) < (parent.fork_turn or 0, parent.fork_token):
            parent = parent.parent  # turns before its own beginning are an ancestor's
        if fork.token and self._agents is not None:
            self._agents.split(parent, fork.turn, fork.token)
        elif fork.token:
            split(
                (member.live for member in self._members.values()), parent, fork.turn, fork.token, self.context.encoder
            )
        for _ in range(fork.n):
            live = parent.fork(fork.turn, fork.token)
            live.fork_reason = {name: float(value) for name, value in fork.reason.items() if math.isfinite(value)}
            self.context.counts.forks += 1
            self.history.add_fork(live.path, fork.turn, fork.token)
            self._start(live)

    def _start(self, live: LiveRollout) -> None:
        member = self._members[live.path] = _Member(live)
        if live.parent is not None:
            self._members[live.parent.path].n_waiting_forks += 1
        self._order.start(live.path, live.turn)
        if self.states is not None:
            self.states.begin(live)
        if self._agents is not None:
            self._agents.begin(live)
        member.task = self._tasks.create_task(self._play(live), name=f"rollout {live.key.text}")

    def _stop(self, path: BranchPath) -> None:
        """End a rollout now. Everything after the turn that the policy knows of is dropped."""
        member = self._members[path]
        self._order.drop(path)
        member.live.cut(self.history.prune(path))
        self._note_sampled(member.live)
        self._end_prefix(member)
        assert member.task is not None
        member.task.cancel()  # one that has ended stays as it is

    def _note_sampled(self, live: LiveRollout) -> None:
        """A fork that has sampled, or ended, no longer needs its parent's prefix."""
        if live.parent is not None and not live.sampled:
            parent = self._members[live.parent.path]
            parent.n_waiting_forks -= 1
            self._release_unneeded(parent)
        live.sampled = True

    def _end_prefix(self, member: _Member) -> None:
        member.has_ended = True
        self._release_unneeded(member)

    def _release_unneeded(self, member: _Member) -> None:
        """Release prefixes; a deterministic run keeps them until the group ends, so that late forks find the same."""
        if member.has_ended and not member.n_waiting_forks and not member.is_released and not self.deterministic:
            member.is_released = True
            self._release([member.live.key.text])

    def _release_all(self) -> None:
        held = [path for path, member in self._members.items() if not member.is_released]
        for path in held:
            self._members[path].is_released = True
        self._release([self._members[path].live.key.text for path in sorted(held)])


async def _fail(error: Exception) -> None:
    raise error
