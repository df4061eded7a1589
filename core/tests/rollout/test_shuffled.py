"""The branch policy `shuffled`: the wrapped policy decides by the entropies of other turns of the same depth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from statistics import fmean
from typing import Any

import pytest

from ramet.config.schema import BudgetKind
from ramet.errors import ConfigError
from ramet.plugins.registered import branch_policy_named
from ramet.rollout.branching.budgets import step_budget
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.branching.shuffled import Shuffled
from ramet.rollout.config import ShuffledConfig
from ramet.testing import check_branch_policy
from ramet.testing.doubles import Reply
from ramet.types import (
    BranchAction,
    BranchEvent,
    BranchPolicy,
    Done,
    FirstTokens,
    Fork,
    Grant,
    GroupView,
    Idle,
    Need,
    Start,
    StartRoots,
    StepView,
    Task,
)

Play = Callable[..., Any]
FORKED = 1.2  # nats: the policies of these tests fork turns above it


def shuffled(policy: str = "arpo", **params: Any) -> Shuffled:
    return Shuffled(ShuffledConfig(policy=policy, params=params))


class AboveFixed:
    """Forks each turn after a tool result whose first tokens are above `FORKED`, once; keeps what it was shown."""

    needs = frozenset({Need.ENTROPY})

    def __init__(self) -> None:
        self.shown: list[tuple[BranchEvent, GroupView]] = []

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        self.shown.append((event, group))
        match event:
            case Start():
                return [StartRoots(n=6)]
            case FirstTokens(rollout=rollout, turn=turn) if turn > 0 and group.budget_left:
                return [Fork(rollout=rollout, turn=turn)] if event.entropies[0] > FORKED else []
            case Idle():
                return [Done()]
        return []

    @property
    def asked(self) -> list[FirstTokens]:
        return [event for event, _ in self.shown if isinstance(event, FirstTokens) and event.turn > 0]


def entropy(task: str, path: str, turn: int) -> float:
    """Of all tokens of a turn, a number of its own; deeper turns have more."""
    return turn / 2 + Random(f"{task} {path} {turn}").random()


def two_calls(task: str, path: str, turn: int) -> Reply:
    text = f"<python>{path} {turn}</python>" if turn < 2 else "<answer>2</answer>"
    return Reply(text=text, entropies=(entropy(task, path, turn),), first_s=0.0005 * len(path))


def around(policy: BranchPolicy) -> Shuffled:
    control = shuffled("none")
    control.policy = policy
    return control


@pytest.mark.parametrize(
    ("policy", "params"),
    [
        ("arpo", {"branches": 2, "max_forks_per_root": 1}),
        ("aepo", {}),
        ("value_guided", {}),
        ("token_entropy", {}),
    ],
)
def test_the_contract_is_kept_around_any_policy(policy: str, params: dict[str, Any]) -> None:
    check_branch_policy(shuffled(policy, **params))


def test_each_turn_is_asked_about_once_with_the_entropies_of_another_of_its_depth(play: Play) -> None:
    inner = AboveFixed()
    played = play(two_calls, policy=around(inner), group_size=60)
    own = {(one.id, turn): entropy("t", one.id, turn) for one in played.rollouts for turn in (1, 2)}
    places = [(event.rollout, event.turn) for event in inner.asked]
    assert len(set(places)) == len(places) > 8
    for event in inner.asked:
        others = [value for (id, turn), value in own.items() if turn == event.turn and id != event.rollout]
        assert abs(event.entropies[0] - own[event.rollout, event.turn]) > 1e-4
        assert min(abs(event.entropies[0] - value) for value in others) < 1e-6
    first = [(event, group) for event, group in inner.shown if isinstance(event, FirstTokens) and event.turn == 0]
    assert all(event.entropies[0] == pytest.approx(entropy("t", event.rollout, 0)) for event, _ in first)


def test_forks_are_as_many_and_as_deep_as_those_of_the_policy_itself(play: Play, make_task: Any) -> None:
    tasks = [make_task(str(i)) for i in range(50)]
    forks, chosen = {}, {}
    for name, policy in {"itself": AboveFixed(), "shuffled": around(AboveFixed())}.items():
        played = play(two_calls, policy=policy, tasks=tasks, group_size=30, max_concurrent=100)
        made = [one for one in played.rollouts if one.parent]
        forks[name] = Counter(one.fork_turn for one in made)
        at = [(one.task.id, one.parent, one.fork_turn) for one in made if one.fork_turn == 2]
        chosen[name] = fmean(entropy(*place) for place in at)
    for depth in (1, 2):
        assert forks["shuffled"][depth] == pytest.approx(forks["itself"][depth], rel=0.15)
    assert chosen["itself"] == pytest.approx(1.6, abs=0.04)  # of turns between 1 and 2 nats, those above 1.2
    assert chosen["shuffled"] == pytest.approx(1.5, abs=0.04)  # any of them


def levels(task: str, path: str, turn: int) -> Reply:
    """Some rollouts are surer than others, in all their turns."""
    level = Random(f"{task} {path.split('.')[0]}").gauss(0, 0.5)
    entropies = (3 + level + 0.3 * (turn > 0) + Random(f"{task} {path} {turn}").gauss(0, 0.1),)
    return Reply(text=two_calls(task, path, turn).text, entropies=entropies)


def test_forks_are_as_many_where_the_policy_compares_with_first_turns(play: Play, make_task: Any) -> None:
    tasks, params = [make_task(str(i)) for i in range(12)], {"initial_rollouts": 8}
    forks = []
    for name, options in {"arpo": params, "shuffled": {"policy": "arpo", "params": params}}.items():
        policy = branch_policy_named(name, options, key="branch_policy.params")
        played = play(levels, policy=policy, tasks=tasks, group_size=40, max_concurrent=200)
        forks.append(Counter(one.fork_turn for one in played.rollouts if one.parent))
    for depth in (1, 2):
        assert forks[1][depth] == pytest.approx(forks[0][depth], rel=0.15)


def test_names_and_options_that_do_not_fit_are_told_with_their_key() -> None:
    with pytest.raises(ConfigError, match=r"no branch policy named 'aro'\. Did you mean 'arpo'"):
        shuffled("aro")
    with pytest.raises(ConfigError, match=r"^branch_policy\.params\.policy: name the branch policy"):
        shuffled("")
    with pytest.raises(ConfigError, match=r"branch policy 'arpo': no option tua; allowed: .*tau"):
        shuffled("arpo", tua=1)
    view = GroupView(task=Task(id="t", prompt=()), budget=4, budget_left=4, rollouts=(), vocab_size=9)
    with pytest.raises(ConfigError, match=r"^branch_policy\.params\.params\.initial_rollouts: 9 "):
        shuffled("arpo", initial_rollouts=9).decide(Start(), view, Random(0))


def test_its_needs_are_those_of_the_policy_and_earlier_turns() -> None:
    assert shuffled("arpo").needs == {Need.ENTROPY, Need.EARLIER_TURNS}
    assert shuffled("value_guided").needs == {Need.ENTROPY, Need.EARLIER_TURNS, Need.REWARDS}


def test_the_budget_of_the_policy_s_own_step_is_kept(register: Callable[..., None]) -> None:
    class Allocates(NoBranching):
        def allocate(self, step: StepView, rng: Random) -> Sequence[Grant]:
            return [Grant(task=0, n=step.budget_left)]

    register("branch_policy", "allocates", Allocates)
    view = StepView(step=1, tasks=(), group_size=4, max_group_size=8, budget=8, budget_left=6)
    budget = step_budget(BudgetKind.AUTO, shuffled("allocates"))
    assert budget is not None and budget.allocate(view, Random(0)) == [Grant(task=0, n=6)]
    assert step_budget(BudgetKind.AUTO, shuffled("arpo")) is None
