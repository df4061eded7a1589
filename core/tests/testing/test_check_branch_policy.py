"""The check of branch policies passes good ones and names what is wrong with each broken one."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from random import Random

import pytest

from ramet import (
    AfterTool,
    BranchAction,
    BranchEvent,
    ConfigError,
    FirstTokens,
    Fork,
    GroupView,
    Idle,
    Need,
    Start,
    StartRoots,
)
from ramet.testing import check_branch_policy


class Halves:
    """Half of the budget as roots; forks on a coin after tool results; fills up when idle."""

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        left = group.budget_left
        if left == 0:
            return []
        if isinstance(event, Start):
            return [StartRoots(n=max(1, left // 2))]
        if isinstance(event, FirstTokens) and event.turn > 0 and rng.random() < 0.5:
            return [Fork(rollout=event.rollout, turn=event.turn)]
        return [StartRoots(n=left)] if isinstance(event, Idle) else []


class FixedRoots(Halves):
    """Refuses groups that are smaller than its options say."""

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        if group.budget < 4:
            raise ConfigError(f"roots: 4 is more than rollout.group_size, {group.budget}")
        return super().decide(event, group, rng)


class All:
    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        return [StartRoots(n=group.budget)] if isinstance(event, Start) and group.budget else []


class OverBudgetAtZero(Halves):
    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        return [StartRoots(n=max(1, group.budget // 2))] if isinstance(event, Start) else []


class OverBudgetLater(Halves):
    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        if isinstance(event, AfterTool):
            return [Fork(rollout=event.rollout, turn=event.turn, n=2)]
        return super().decide(event, group, rng)


class GlobalRandom(Halves):
    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        return super().decide(event, group, random)  # type: ignore[arg-type]


class KeepsState(Halves):
    def __init__(self) -> None:
        self.forked: set[str] = set()

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        if isinstance(event, FirstTokens) and event.turn > 0 and group.budget_left > 0:
            if event.rollout in self.forked:
                return []
            self.forked.add(event.rollout)
            return [Fork(rollout=event.rollout, turn=event.turn)]
        return super().decide(event, group, rng)


class ForksAtTheStart(Halves):
    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        if isinstance(event, FirstTokens) and group.budget_left:
            return [Fork(rollout=event.rollout, turn=0)]
        return super().decide(event, group, rng)


class ForksUnknown(Halves):
    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        if isinstance(event, AfterTool) and group.budget_left:
            return [Fork(rollout="nobody", turn=1)]
        return super().decide(event, group, rng)


class ForksTheFuture(Halves):
    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        if isinstance(event, AfterTool) and group.budget_left:
            return [Fork(rollout=event.rollout, turn=event.turn + 1)]
        return super().decide(event, group, rng)


class NeverStarts(Halves):
    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        return []


class ReturnsNone(Halves):
    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        return None  # type: ignore[return-value]


class StartsNone(Halves):
    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        return [StartRoots(n=group.budget // 2)] if isinstance(event, Start) else []


class Negative(Halves):
    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        return [StartRoots(n=1), StartRoots(n=-1)] if isinstance(event, Start) else []


class TooManyRoots(Halves):
    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        raise ConfigError(f"roots: 1000 is more than {group.budget}")


class Async(Halves):
    async def decide(  # type: ignore[override]
        self, event: BranchEvent, group: GroupView, rng: Random
    ) -> Sequence[BranchAction]:
        return []


class SaysItsNeeds(All):
    needs = frozenset({Need.ENTROPY})


class NeedsValues(All):
    needs = frozenset({Need.VALUES})


class NeedsText(All):
    needs = ("entropy",)


@pytest.mark.parametrize("good", [Halves, All, FixedRoots, SaysItsNeeds])
def test_a_good_policy_passes(good: type) -> None:
    check_branch_policy(good())


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (OverBudgetAtZero, "Start, with 0 of a budget of 0 left: .*asks for 1 rollouts, budget left is 0"),
        (OverBudgetLater, "AfterTool, with . of a budget of . left: .*budget left is"),
        (GlobalRandom, "the same event .* draw only from the rng"),
        (KeepsState, "the same event .* keep nothing between calls"),
        (ForksAtTheStart, "for turn 0 use StartRoots"),
        (ForksUnknown, "no such rollout"),
        (ForksTheFuture, "can be forked at turns 1 to"),
        (NeverStarts, "starts no root"),
        (ReturnsNone, "return a list"),
        (StartsNone, "starts no root"),
        (Negative, "n must not be negative"),
        (TooManyRoots, "refuses every budget"),
        (Async, "decide is async"),
        (
            NeedsValues,
            "needs names values: only earlier_turns, entropy, late_events, prefixes, rewards can be given to it",
        ),
        (NeedsText, "needs is .*: set it to a frozenset of Need"),
    ],
)
def test_a_broken_policy_is_caught(broken: type, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_branch_policy(broken())
    assert re.search(message, str(caught.value))
