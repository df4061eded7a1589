"""The branch policy `shuffled`: a policy under test that sees, of each turn, the entropies of another turn.

It is the control of policies that choose turns by entropy. The wrapped policy keeps its rule, its options and its
budget. The entropies of a depth stay at that depth, so it makes as many forks, as deep as before. Which turn of a depth
it forks is random. A turn's depth is the number of tool results before it. First turns are never forked. A policy may
compare with them, so each turn's entropies come with the entropies of the first turn before them.

Some policies decide on a turn as soon as its first tokens are there. They are asked about the first turn of a depth
when the second arrives, each with the entropies of the other. Later turns get the entropies of a turn drawn from all
before. The only turn of a depth is not forked. A policy that decides later (`Need.EARLIER_TURNS`) sees the turns of
each depth in another order at every event; an only turn then keeps its entropies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from random import Random
from typing import cast

from ramet.errors import ConfigError
from ramet.plugins.instance_keys import instance_of
from ramet.plugins.registered import branch_policy_named
from ramet.rollout.config import ShuffledConfig
from ramet.rollout.method import rollout_method
from ramet.types import (
    BranchAction,
    BranchEvent,
    Done,
    FirstTokens,
    Fork,
    GroupView,
    Need,
    RolloutView,
    StepBudget,
    TurnView,
)
from ramet.types.branch import policy_needs

Entropies = tuple[float, ...]
Place = tuple[str, int]  # a rollout and its turn


class Shuffled:
    """The wrapped policy's `needs`, and `Need.EARLIER_TURNS`, since the first turn of a depth is decided on later."""

    def __init__(self, config: ShuffledConfig) -> None:
        if not config.policy:
            raise ConfigError("branch_policy.params.policy: name the branch policy that shuffled is the control of")
        self.policy = branch_policy_named(config.policy, config.params, key="branch_policy.params.params")
        if rollout_method(self.policy) is not None:
            raise ConfigError(
                f"branch_policy.params.policy: {config.policy} has its own rollout method, which cannot be "
                "shuffled; choose a policy that is asked event by event, such as arpo or aepo"
            )
        needs = policy_needs(self.policy)
        self.needs = needs | {Need.ENTROPY, Need.EARLIER_TURNS}
        self._decides_later = Need.EARLIER_TURNS in needs
        if hasattr(self.policy, "allocate"):  # it sees no entropies
            self.allocate = cast(StepBudget, self.policy).allocate

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        with instance_of("branch_policy.params", "branch_policy.params.params"):
            if isinstance(event, FirstTokens) and event.turn > 0:
                return self._after_first_tokens(event, group, rng)
            return self.policy.decide(event, _seen(group, _another_order(group, rng)), rng)

    def _after_first_tokens(self, event: FirstTokens, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        others = [place for place in _sampled(group, event.turn) if place[0] != event.rollout]
        if not others:
            return self.policy.decide(event, group, rng) if self._decides_later else []
        own_place: Place = (event.rollout, event.turn)
        actions: list[BranchAction] = []
        if len(others) == 1 and not self._decides_later:
            actions += self._ask(others[0], own_place, event.entropies, group, rng)
            group = _after(group, actions)
        if not group.budget_left:
            return actions
        other = rng.choice(others)
        shown = _as_long(group.rollout(other[0]).turns[event.turn].entropies, event.entropies)
        return [*actions, *self._ask(own_place, other, shown, group, rng)]

    def _ask(
        self, place: Place, other: Place, entropies: Entropies, group: GroupView, rng: Random
    ) -> Sequence[BranchAction]:
        """Actions of the policy if the first tokens of `place` have these `entropies`, taken from `other`.

        Its root's first turn gets the entropies of the other's root. Otherwise a policy that compares the two would see
        changes that no rollout has, and fork more or less often than unwrapped.
        """
        rollout, turn = place
        if not group.rollout(rollout).valid:
            return []
        event = FirstTokens(rollout=rollout, turn=turn, entropies=entropies)
        root, first = group.rollout(rollout).root, group.rollout(group.rollout(other[0]).root).turns[0]
        return self.policy.decide(event, _seen(group, {place: entropies, (root, 0): first.entropies}), rng)


def _sampled(group: GroupView, depth: int) -> list[Place]:
    """The turns of this depth that a policy may decide on. The turns that a fork begins with count for its parent."""
    return [
        (view.id, depth)
        for view in group.rollouts
        if len(view.turns) > depth > (view.fork_turn or 0) and view.turns[depth].entropies
    ]


def _another_order(group: GroupView, rng: Random) -> dict[Place, Entropies]:
    """Give each turn after a tool result the entropies of another turn of its depth, each once."""
    by_place: dict[Place, Entropies] = {}
    for depth in range(1, max((len(view.turns) for view in group.rollouts), default=0)):
        places = _sampled(group, depth)
        rng.shuffle(places)
        for place, (rollout, turn) in zip(places, [*places[1:], *places[:1]], strict=True):
            by_place[place] = group.rollout(rollout).turns[turn].entropies
    return by_place


def _seen(group: GroupView, entropies: Mapping[Place, Entropies]) -> GroupView:
    """The group with other entropies in these turns, and wherever forks share them."""

    def turn_seen(holder: RolloutView, turn: TurnView) -> TurnView:
        while holder.parent is not None and turn.index < (holder.fork_turn or 0):
            holder = group.rollout(holder.parent)
        other = entropies.get((holder.id, turn.index))
        return turn if other is None else replace(turn, entropies=_as_long(other, turn.entropies))

    seen = (replace(view, turns=tuple(turn_seen(view, turn) for turn in view.turns)) for view in group.rollouts)
    return replace(group, rollouts=tuple(seen))


def _as_long(entropies: Entropies, own_entropies: Entropies) -> Entropies:
    """Cut or repeated to the number of the turn's own: a policy may look up any of its tokens."""
    return tuple(islice(cycle(entropies), len(own_entropies)))


def _after(group: GroupView, actions: Sequence[BranchAction]) -> GroupView:
    """The group with the forks of these actions, which have not begun."""
    if any(isinstance(action, Done) for action in actions):
        return replace(group, budget_left=0)
    forks = [action for action in actions if isinstance(action, Fork) for _ in range(action.n)]
    begun = [
        RolloutView(
            id=f"{fork.rollout}.begun{i}",
            root=group.rollout(fork.rollout).root,
            parent=fork.rollout,
            fork_turn=fork.turn,
            fork_token=fork.token,
            turns=group.rollout(fork.rollout).turns[: fork.turn],
            finished=False,
            valid=True,
        )
        for i, fork in enumerate(forks)
    ]
    return replace(group, budget_left=group.budget_left - len(begun), rollouts=(*group.rollouts, *begun))
