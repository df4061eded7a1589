"""Check of branch policies (hook 2): simulated groups run, then every decision is asked for again.

Views and checks of the answers are the rollout worker's code: its group history and its checks.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from ramet.errors import ConfigError, PluginError
from ramet.rollout.branching.decisions import ask
from ramet.rollout.branching.events import Phase, RolloutEvent
from ramet.rollout.branching.group_history import GroupHistory
from ramet.rollout.keys import path_of
from ramet.testing.checked import checked, progress
from ramet.testing.expect import expect, expect_needs
from ramet.testing.step_budget import check_step_budget
from ramet.types import (
    AfterTool,
    BranchAction,
    BranchEvent,
    BranchPolicy,
    CallStatus,
    CallView,
    Done,
    Finished,
    FirstTokens,
    Fork,
    GroupView,
    Idle,
    Need,
    PrefixView,
    RolloutView,
    Scored,
    Start,
    StartFrom,
    StartRoots,
    StepBudget,
    Stop,
    StopReason,
    Task,
    TurnView,
    user_prompt,
)
from ramet.types.branch import policy_needs

BUDGETS = (1, 3, 100, 0)  # 0 comes last: its problem would hide others
SEEDS = (0, 1)
MAX_TURN = 2
FIRST_TOKENS = 5
GIVEN = frozenset({Need.ENTROPY, Need.REWARDS, Need.EARLIER_TURNS, Need.LATE_EVENTS, Need.PREFIXES})
PREFIXES = (PrefixView(n_tokens=12, turns=1, reward=0.0), PrefixView(n_tokens=30, turns=2, reward=1.0))
VOCAB_SIZE = 1000


@checked("decide")
def check_branch_policy(policy: BranchPolicy) -> None:
    """Raise `AssertionError` unless the policy keeps the contract.

    Starts a root at `Start`. Never asks for more than is left of budgets 0, 1, 3 and 100. Forks only rollouts, turns
    and tokens that exist, and stops only running rollouts. `needs` has only inputs of branch policies. Answers the same
    for the same event, view and random state, in any order. A `ConfigError` at `Start` refuses a budget that the
    policy's options do not fit. Its `allocate`, if it has one, is checked as a step budget (`check_step_budget`).
    """
    if hasattr(policy, "needs"):
        unknown = expect_needs(policy) - GIVEN
        expect(
            not unknown, f"needs names {', '.join(sorted(unknown))}: only {', '.join(sorted(GIVEN))} can be given to it"
        )
    decide = getattr(policy, "decide", None)
    expect(callable(decide), "has no method decide(event, group, rng)")
    expect(not inspect.iscoroutinefunction(decide), "decide is async: declare it with `def`")
    refused = []
    for budget in BUDGETS:
        try:
            for seed in SEEDS:
                _check_pure(policy, list(_SimulatedGroup(policy, budget, seed).run()))
        except ConfigError as error:
            refused.append(f"{budget} ({error})")
    expect(len(refused) < len(BUDGETS), f"refuses every budget: {'; '.join(refused)}")
    if hasattr(policy, "allocate"):
        check_step_budget(cast(StepBudget, policy))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    event: BranchEvent
    view: GroupView
    rng_state: Any
    actions: list[BranchAction]


def _ask(policy: BranchPolicy, event: BranchEvent, view: GroupView, rng: Random) -> list[BranchAction]:
    when = f"at {type(event).__name__}, with {view.budget_left} of a budget of {view.budget} left"
    try:
        actions = ask(policy, event, view, rng, stateful=True)
    except ConfigError:
        expect(isinstance(event, Start), f"{when}: raises ConfigError in the middle of a group: do it at Start")
        raise
    except PluginError as error:
        most = "; StartRoots(n=min(n, group.budget_left)) starts no more" if view.budget == 0 else ""
        raise AssertionError(f"{when}: {error}{most}") from error
    progress()
    if isinstance(event, Start) and view.budget > 0:
        roots = sum(action.n for action in actions if isinstance(action, StartRoots | StartFrom))
        expect(roots > 0, f"{when}: starts no root, so the group stays empty: answer Start with StartRoots(n=…)")
    return actions


def _check_pure(policy: BranchPolicy, decisions: list[_Decision]) -> None:
    """Ask again for every decision, last first. State between calls and other random sources then show."""
    for decision in reversed(decisions):
        rng = Random()
        rng.setstate(decision.rng_state)
        again = _ask(policy, decision.event, decision.view, rng)
        expect(
            again == decision.actions,
            f"the same event ({decision.event}), view and random state gave {decision.actions} and then {again}: keep "
            "nothing between calls and draw only from the rng that decide is given",
        )


class _SimulatedGroup:
    """One group in flight: rollouts of one to three turns with a tool result between turns, in random interleaving.

    Turns call nothing, once or twice, and calls fail; a rollout may be lost to infrastructure.
    """

    def __init__(self, policy: BranchPolicy, budget: int, seed: int) -> None:
        self._policy = policy
        self._rng = Random(f"policy {budget} {seed}")
        self._world = Random(f"world {budget} {seed}")
        task = Task(id="conformance/0", prompt=user_prompt("What is 2 + 3?"), answer=("5",))
        needs = policy_needs(policy)
        self._last = Phase.SCORED if Need.REWARDS in needs else Phase.END
        prefixes = PREFIXES if Need.PREFIXES in needs and seed else ()  # the first step has none
        self._history = GroupHistory(task, budget, VOCAB_SIZE, self._last, prefixes=prefixes)
        self._n_roots = 0
        self._n_forks: Counter[str] = Counter()
        self._scored: set[str] = set()

    def run(self) -> Iterator[_Decision]:
        yield self._decide(Start())
        while True:
            while self._history.n_live:
                event = self._advance(
                    self._world.choice([r for r in self._history.view().rollouts if self._is_live(r)])
                )
                if event is not None:
                    yield self._decide(event)
            if self._history.budget_left == 0:
                return
            idle = self._decide(Idle())
            yield idle
            if not self._history.n_live:
                return

    def _is_live(self, rollout: RolloutView) -> bool:
        waits = self._last is Phase.SCORED and rollout.stop is not StopReason.PRUNED and rollout.id not in self._scored
        return not rollout.finished or waits

    def _decide(self, event: BranchEvent) -> _Decision:
        state, view = self._rng.getstate(), self._history.view()
        actions = _ask(self._policy, event, view, self._rng)
        for action in actions:
            self._act(action)
        return _Decision(event=event, view=view, rng_state=state, actions=actions)

    def _act(self, action: BranchAction) -> None:
        match action:
            case StartRoots(n=n):
                for _ in range(n):
                    self._history.add_root((self._n_roots,))
                    self._n_roots += 1
            case StartFrom(prefix=prefix, n=n):
                for _ in range(n):
                    self._history.add_root((self._n_roots,), prefix, _turns(PREFIXES[prefix]))
                    self._n_roots += 1
            case Fork(rollout=parent, n=n):
                for fork in range(self._n_forks[parent], self._n_forks[parent] + n):
                    self._history.add_fork((*path_of(parent), fork), action.turn, action.token)
                self._n_forks[parent] += n
            case Stop(rollout=id):
                self._history.prune(path_of(id))
            case Done():
                self._history.leave_rest()

    def _advance(self, rollout: RolloutView) -> BranchEvent | None:
        """Advance this rollout by one event: its turn's first tokens, then a tool result or its end, then its score."""
        path, turn = path_of(rollout.id), rollout.turns[-1]
        if rollout.finished:
            reward = None if rollout.stop is StopReason.FAULT else self._world.choice([0.0, 1.0])
            self._scored.add(rollout.id)
            self._history.apply(RolloutEvent(path, Phase.SCORED, turn.index, reward=reward))
            return Scored(rollout=rollout.id, reward=reward)
        if not turn.entropies:
            entropies = tuple(self._world.uniform(0.0, 3.0) for _ in range(self._world.randint(1, FIRST_TOKENS)))
            self._history.apply(RolloutEvent(path, Phase.FIRST, turn.index, entropies=entropies))
            decided = rollout.fork_turn == turn.index  # not reported for the turn that a fork begins with
            return None if decided else FirstTokens(rollout=rollout.id, turn=turn.index, entropies=entropies)
        entropies = (*turn.entropies, *(self._world.uniform(0.0, 3.0) for _ in range(10)))
        over: Any = {"n_tokens": len(entropies), "entropies": entropies}
        if turn.index < MAX_TURN and self._world.random() < 0.7:
            calls = self._calls()
            self._history.apply(RolloutEvent(path, Phase.BEGIN, turn.index + 1, calls=calls, **over))
            return AfterTool(rollout=rollout.id, turn=turn.index + 1, calls=calls)
        stop = StopReason.ANSWER if self._world.random() < 0.9 else StopReason.FAULT
        lost = (CallView(name="search", status=CallStatus.INFRA, truncated=False),) if stop is StopReason.FAULT else ()
        self._history.apply(RolloutEvent(path, Phase.END, turn.index, stop=stop, calls=lost, **over))
        return Finished(rollout=rollout.id, stop=stop)

    def _calls(self) -> tuple[CallView, ...]:
        """Write the calls of a turn (none, one or two), of which some fail."""
        statuses = self._world.choice([(), ("ok",), ("ok",), ("error",), ("error", "ok"), ("error", "error")])
        return tuple(
            CallView(name="search", status=CallStatus(status), truncated=self._world.random() < 0.2)
            for status in statuses
        )


def _turns(prefix: PrefixView) -> tuple[TurnView, ...]:
    """Write the turns of a stored prefix, each with as many tokens."""
    n = prefix.n_tokens // prefix.turns
    return tuple(TurnView(index=i, entropies=(), n_tokens=n, ended=True, n_forks=0) for i in range(prefix.turns))
