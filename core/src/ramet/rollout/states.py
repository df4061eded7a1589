"""States of tools and environments: each rollout has its own, a fork begins with the state at its fork point.

docs/environments.md says how a component copies or replays one. A fork is decided while its parent continues. So before
a turn uses a parent's state, a copy from the beginning of that turn is kept, as long as forks may still come. A fork
copies from there, or from the state itself if it has not been used since. States that nothing can need any more are
closed at once, and all when the group ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramet.errors import ConfigError, PluginError
from ramet.plugins import origin
from ramet.plugins.plugin_code import named, raised_at
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.faults import StateFailed, is_defect
from ramet.rollout.keys import stable_seed
from ramet.rollout.stateful import ENVIRONMENT, StatefulComponent, config_key
from ramet.rollout.tree import LiveRollout
from ramet.rollout.watchdog import CLOSE_TIMEOUT_S, Watchdog, close_quietly
from ramet.types import BranchPolicy, Need, Task
from ramet.types.branch import policy_needs

# Brings a fresh state to the fork point of a rollout; raises `StateFailed`.
Replay = Callable[
    [LiveRollout, StatefulComponent, Any, Any], Awaitable[None]
]  # rollout, whose, its state, environment's


@dataclass(slots=True, eq=False)
class HeldState:
    """The state of one component in one rollout."""

    component: StatefulComponent
    newest: int  # the rollout's newest turn that was decided upon: without `Need.EARLIER_TURNS` forks start there
    last: int | None = None  # the rollout's last turn, once it ended
    state: Any = None  # None: not open
    opened_in: int | None = None  # the turn
    used_in: int = -1  # the newest turn in which it may have changed
    copies: dict[int, Any] = field(default_factory=dict)  # turn -> as it was at the beginning of that turn
    source: tuple[HeldState, int] | None = None  # of a fork that has not copied it yet: whose state, and of which turn
    claims: int = 0  # forks that still have to copy from here
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    calls: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the call that uses it

    def as_of(self, turn: int) -> Any:
        """The state as it was at the beginning of `turn`: before the first later use, or the current one."""
        kept = [kept_turn for kept_turn in self.copies if kept_turn >= turn]
        if kept:
            return self.copies[min(kept)]
        assert self.used_in < turn, f"no copy of state:{self.component.name} was kept for turn {turn}"
        return self.state


class States:
    """The states of one group. Every one of them is closed exactly once."""

    def __init__(
        self,
        components: Sequence[StatefulComponent],
        *,
        task: Task,
        seed: int,
        policy: BranchPolicy,
        budget_left: Callable[[], int],
        replay: Replay,
        watchdog: Watchdog,
    ) -> None:
        self._components = components
        self._of = {user: component.name for component in components for user in component.users}
        self._task = task
        self._seed = seed  # of the run
        self._can_fork = not isinstance(policy, NoBranching)
        self._earlier_turns = Need.EARLIER_TURNS in policy_needs(policy)
        self._budget_left = budget_left
        self._replay = replay
        self._watchdog = watchdog
        self._held: list[HeldState] = []  # of all rollouts; each has its own in `LiveRollout.states`, by component
        self._closing: set[asyncio.Task[None]] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._of

    def in_order(self, live: LiveRollout, name: str) -> asyncio.Lock:
        """The lock of one state, which calls of its tools take in the order in which they were made."""
        return live.states[self._of[name]].calls

    def begin(self, live: LiveRollout) -> None:
        """Begin a rollout. A root opens its states when it needs them. For a fork, the states of its fork point are
        kept from now on.
        """
        if live.parent is None:
            live.states = {component.name: HeldState(component, newest=live.turn) for component in self._components}
        else:
            live.states = {name: _forked(held, live.turn) for name, held in live.parent.states.items()}
        self._held += live.states.values()

    async def start(self, live: LiveRollout) -> None:
        """A fork copies the states of its fork point. Raises `StateFailed`."""
        for held in live.states.values():
            if held.source is not None:
                await self._copy_from(live, held, *held.source)

    async def use(self, live: LiveRollout, name: str, environment: Any = None) -> Any:
        """The state for a use in the rollout's current turn, opened if need be. Raises `StateFailed`.

        `environment`: the rollout's, for tools whose calls have to be replayed.
        """
        held = live.states[self._of[name]]
        async with held.lock:
            if held.state is None:
                held.state = await self._open(live, held.component, environment)
                held.opened_in = live.turn
            elif held.used_in < live.turn and (self._may_fork or held.claims):
                await self._keep_copy(live, held)
            held.used_in = live.turn
            return held.state

    def decided(self, live: LiveRollout, newest: int) -> None:
        """The branch policy was asked about this turn of a rollout: copies of earlier ones may be closed."""
        for held in live.states.values():
            held.newest = newest
            self._close_unneeded(held)

    def ended(self, live: LiveRollout) -> None:
        """The rollout is over. Its states stay as long as it may be forked at its newest turn."""
        for held in live.states.values():
            held.last = live.turn
            self._close_unneeded(held)

    def close_unneeded(self) -> None:
        """Close what nothing can need any more."""
        for held in self._held:
            self._close_unneeded(held)

    async def close(self) -> None:
        """Close all that is open; returns when that is done. No rollout may be running."""
        for held in self._held:
            self._close_copies(held, held.copies)
            self._close_state(held)
        while self._closing:
            await asyncio.wait(self._closing)

    @property
    def _may_fork(self) -> bool:
        return self._can_fork and self._budget_left() > 0

    def _close_unneeded(self, held: HeldState) -> None:
        if held.claims:
            return
        may_fork = self._may_fork and held.component.owner.forks == "copy"
        if not may_fork:
            self._close_copies(held, held.copies)
        elif not self._earlier_turns:
            self._close_copies(held, [turn for turn in held.copies if turn < held.newest])
        if held.last is not None and (held.used_in >= held.last or not may_fork):
            self._close_state(held)

    def _close_copies(self, held: HeldState, turns: Iterable[int]) -> None:
        for turn in list(turns):
            self._close_later(held.component, held.copies.pop(turn))

    def _close_state(self, held: HeldState) -> None:
        if held.state is not None:
            state, held.state = held.state, None
            self._close_later(held.component, state)

    async def _keep_copy(self, live: LiveRollout, held: HeldState) -> None:
        if held.component.owner.forks == "copy":
            held.copies[live.turn] = await self._copy(live, held.component, held.state)

    async def _copy_from(self, live: LiveRollout, held: HeldState, source: HeldState, turn: int) -> None:
        """The claim stays if this fails, so that a fork of this rollout still finds the state."""
        async with source.lock:
            held.state = await self._copy(live, held.component, source.as_of(turn))
        held.source = None
        source.claims -= 1
        self._close_unneeded(source)

    async def _open(self, live: LiveRollout, component: StatefulComponent, environment: Any) -> Any:
        key, prefix = live.key, live.root.prefix
        step, root = (key.step, str(live.path[0])) if prefix is None else (prefix.opened_step, prefix.opened_root)
        seed = stable_seed("state", self._seed, key.salt, step, key.task, root, component.name)
        state = await self._make(live, component, "open", component.owner.open(self._task, seed))
        # A fork that opens an environment with copies begins in the first turn, after `begin`, of which none is kept.
        is_fresh = live.parent is None and live.prefix is None
        if is_fresh or (component.owner.forks != "replay" and component.name != ENVIRONMENT):
            return state
        try:
            await self._replay(live, component, state, environment)
        except BaseException as error:
            self._close_later(component, state)
            if not isinstance(error, Exception) or isinstance(error, (StateFailed, PluginError, ConfigError)):
                raise
            raise StateFailed(component.name, f"replay raised {type(error).__name__}: {error}") from error
        return state

    async def _copy(self, live: LiveRollout, component: StatefulComponent, state: Any) -> Any:
        return await self._make(live, component, "fork", component.owner.fork(state))

    async def _make(
        self, live: LiveRollout, component: StatefulComponent, what: str, work: Coroutine[Any, Any, Any]
    ) -> Any:
        """The state that `open` or `fork` gives, in a separate task, which is waited for only as long as allowed."""
        name, task = component.name, asyncio.create_task(self._checked(component, what, work))
        try:
            with self._watchdog.wait(f"{what} of state:{name} rollout {live.key}"):
                done, _ = await asyncio.wait({task}, timeout=component.timeout_s)
        except asyncio.CancelledError:
            self._abandon(component, task)
            raise
        if not done:
            self._abandon(component, task)
            raise StateFailed(name, f"{what} did not return within {component.timeout_s:g} s")
        if task.cancelled():
            raise StateFailed(name, f"{what} cancelled itself")
        return task.result()

    async def _checked(self, component: StatefulComponent, what: str, work: Awaitable[Any]) -> Any:
        """Turn what the component raises into an error of the contract that names it."""
        try:
            state = await work
        except PluginError:
            raise
        except ConfigError as error:
            raise named(error, f"{what} of {origin(component.owner)}", config_key(component)) from error
        except (Exception, SystemExit) as error:  # asyncio would end the run with a task's SystemExit
            raised = f"raised {type(error).__name__}: {error}{raised_at(error)}"
            if not is_defect(error):
                raise StateFailed(component.name, f"{what} {raised}") from error
            who = f"{what} of {origin(component.owner)}"
            raise StateFailed(component.name, f"{who} {raised}", defect=True) from error
        if state is None:
            raise PluginError(f"{what} of {origin(component.owner)} returned None; allowed: a state")
        return state

    def _abandon(self, component: StatefulComponent, task: asyncio.Task[Any]) -> None:
        """Stop waiting for the state; should it still come, it is closed."""
        task.cancel()
        self._spawn(self._close_when_made(component, task))

    async def _close_when_made(self, component: StatefulComponent, task: asyncio.Task[Any]) -> None:
        await asyncio.wait({task}, timeout=CLOSE_TIMEOUT_S)
        if task.done() and not task.cancelled() and task.exception() is None:
            self._close_later(component, task.result())

    def _close_later(self, component: StatefulComponent, state: Any) -> None:
        async def closing() -> None:
            await component.owner.close(state)

        self._spawn(close_quietly(closing(), f"close of state:{component.name}", self._watchdog))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _forked(parent: HeldState, turn: int) -> HeldState:
    """The state of a fork at the beginning of `turn`. If its parent had none open by then, the fork opens one."""
    held = HeldState(parent.component, newest=turn)
    was_open = parent.opened_in is not None and parent.opened_in < turn
    if parent.component.owner.forks == "copy" and was_open:
        held.source = parent.source or (parent, turn)  # a parent that has not copied yet has not begun its turn either
        held.source[0].claims += 1
        held.opened_in = held.used_in = turn - 1
    return held
