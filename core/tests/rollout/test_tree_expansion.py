"""The branch policy `tree_grpo`: trees, rounds and what is expanded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from ramet.errors import ConfigError
from ramet.rollout.branching.tree_expansion import TreeExpansion
from ramet.rollout.config import TreeExpansionConfig
from ramet.testing import check_branch_policy
from ramet.testing.doubles import Reply
from ramet.types import Fork, GroupView, Idle, RolloutView, Start, StartRoots, StopReason, Task, TurnView, user_prompt

Play = Callable[..., Any]
ANSWER = "<answer>2</answer>"


def two_calls(task: str, path: str, turn: int) -> Reply:
    return Reply(text=f"<python>{path} {turn}</python>" if turn < 2 else ANSWER)


def rollout(id: str, turns: int, *, fork_turn: int | None = None, stop: StopReason = StopReason.ANSWER) -> RolloutView:
    seen = tuple(TurnView(index=i, entropies=(), n_tokens=1, ended=True, n_forks=0) for i in range(turns))
    root, _, _ = id.partition(".")
    return RolloutView(
        id=id, root=root, parent=id.rpartition(".")[0] or None, fork_turn=fork_turn, turns=seen, finished=True,
        valid=stop is not StopReason.FAULT, stop=stop,
    )  # fmt: skip


def group(*rollouts: RolloutView, left: int) -> GroupView:
    task = Task(id="t", prompt=user_prompt("?"))
    return GroupView(task=task, budget=9, budget_left=left, rollouts=rollouts, vocab_size=8)


def test_the_contract_is_kept() -> None:
    check_branch_policy(TreeExpansion(TreeExpansionConfig()))


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_group_of_six_is_two_trees_each_expanded_at_two_turns(play: Play, deterministic: bool) -> None:
    policy = TreeExpansion(TreeExpansionConfig(trees=2, expansions=2))
    rollouts = play(two_calls, policy=policy, group_size=6, deterministic=deterministic).rollouts
    assert Counter(one.id[0] for one in rollouts) == {"0": 3, "1": 3}
    forks = [one for one in rollouts if one.parent is not None]
    assert all(one.fork_turn in (1, 2) for one in forks)
    assert len({(one.parent, one.fork_turn) for one in forks}) == 4  # no turn is expanded twice in a round


def test_further_rounds_expand_forks_too_and_end_with_the_budget(play: Play) -> None:
    policy = TreeExpansion(TreeExpansionConfig(trees=1, expansions=2))
    rollouts = play(two_calls, policy=policy, group_size=8, seed=3).rollouts
    assert len(rollouts) == 8
    assert {one.id[0] for one in rollouts} == {"0"}
    assert any(one.parent not in (None, "0") for one in rollouts)


def test_without_a_number_one_round_fills_the_group() -> None:
    policy = TreeExpansion(TreeExpansionConfig(expansions=3))
    for budget, trees in ((8, 2), (9, 2), (2, 1)):
        view = GroupView(
            task=Task(id="t", prompt=user_prompt("?")), budget=budget, budget_left=budget, rollouts=(), vocab_size=8
        )
        assert policy.decide(Start(), view, Random(0)) == [StartRoots(n=trees)]


def test_a_fork_is_expanded_at_its_own_turns_and_nothing_at_its_last_or_if_masked() -> None:
    policy = TreeExpansion(TreeExpansionConfig(trees=1, expansions=4))
    view = group(
        rollout("0", 3), rollout("0.0", 4, fork_turn=2), rollout("0.1", 5, fork_turn=1, stop=StopReason.FAULT), left=6
    )
    found = policy.decide(Idle(), view, Random(0))
    assert {(fork.rollout, fork.turn) for fork in found if isinstance(fork, Fork)} == {
        ("0", 1), ("0", 2), ("0.0", 3),
    }  # fmt: skip
    assert len(found) == 4  # with three to choose from, some come again


def test_a_tree_of_one_turn_gives_its_share_to_new_trees() -> None:
    policy = TreeExpansion(TreeExpansionConfig(trees=2, expansions=1))
    found = policy.decide(Idle(), group(rollout("0", 1), rollout("1", 2), left=5), Random(0))
    assert found == [StartRoots(n=1), Fork(rollout="1", turn=1)]
    assert policy.decide(Idle(), group(rollout("0", 1), rollout("1", 2), left=1), Random(0)) == [StartRoots(n=1)]


def test_more_trees_than_the_budget_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        TreeExpansion(TreeExpansionConfig(trees=10)).decide(Start(), group(left=9), Random(0))
    assert str(caught.value) == "branch_policy.params.trees: 10 is more than rollout.group_size, 9"
