"""The branch policy `value_guided`: which turns of failed rollouts are forked, in rounds, once rewards are known."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from ramet.errors import ConfigError
from ramet.rollout.branching.value_guided import ValueGuided
from ramet.rollout.config import ValueGuidedConfig
from ramet.testing import check_branch_policy
from ramet.testing.doubles import Reply
from ramet.types import (
    Fork,
    GroupView,
    Idle,
    Rollout,
    RolloutScore,
    RolloutView,
    Scored,
    Start,
    StartRoots,
    Task,
    TurnView,
    user_prompt,
)

Play = Callable[..., Any]


def rollout(id: str, reward: float | None, *entropies: float, forked: tuple[int, ...] = ()) -> RolloutView:
    """With a turn for each mean entropy."""
    turns = tuple(
        TurnView(index=i, entropies=(mean - 0.1, mean + 0.1), n_tokens=2, ended=True, n_forks=forked.count(i))
        for i, mean in enumerate(entropies)
    )
    root, _, _ = id.partition(".")
    fork = {"parent": id.rpartition(".")[0], "fork_turn": 1} if "." in id else {"parent": None, "fork_turn": None}
    return RolloutView(id=id, root=root, turns=turns, finished=True, valid=True, reward=reward, **fork)


def decide(*rollouts: RolloutView, budget: int = 8, event: Any = None, **options: Any) -> Any:
    left = budget - len(rollouts)
    task = Task(id="t", prompt=user_prompt("?"))
    view = GroupView(task=task, budget=budget, budget_left=left, rollouts=rollouts, vocab_size=8)
    return ValueGuided(ValueGuidedConfig(**options)).decide(event or Idle(), view, Random(0))


def test_the_contract_is_kept() -> None:
    check_branch_policy(ValueGuided(ValueGuidedConfig()))
    check_branch_policy(ValueGuided(ValueGuidedConfig(rounds=3, failed_below=2.0)))


def test_a_round_forks_the_most_uncertain_turns_of_failed_rollouts() -> None:
    right, wrong, worse = rollout("0", 1.0, 9, 9, 9), rollout("1", 0.0, 9, 1, 3), rollout("2", 0.0, 9, 2, 0)
    assert decide(right, wrong, worse, rollout("3", None, 9, 9), rounds=2) == [
        Fork(rollout="1", turn=2),
        Fork(rollout="2", turn=1),
    ]
    assert decide(right, wrong, worse, rollout("3", 1.0, 9), rounds=1) == [
        Fork(rollout="1", turn=2),
        Fork(rollout="2", turn=1),
        Fork(rollout="1", turn=1),
        Fork(rollout="2", turn=2),
    ]


def test_a_turn_that_was_forked_comes_after_all_others() -> None:
    seen = rollout("0", 0.0, 0, 5, 1, forked=(1,)), rollout("1", 1.0, 0), rollout("0.0", 1.0, 0, 5)
    assert decide(*seen, budget=4, rounds=2) == [Fork(rollout="0", turn=2)]


def test_what_a_fork_shares_is_its_parents_to_be_forked() -> None:
    seen = rollout("0", 1.0, 0, 5), rollout("0.0", 0.0, 0, 5, 2)
    assert decide(*seen, budget=4, rounds=1) == [Fork(rollout="0.0", turn=2)]


def test_without_a_failed_rollout_that_called_a_tool_the_round_starts_from_the_prompt() -> None:
    assert decide(rollout("0", 1.0, 1, 1), rollout("1", 0.0, 1), budget=6, rounds=2) == [StartRoots(n=2)]
    assert decide(rollout("0", 0.4, 1, 1), budget=2, failed_below=0.3) == [StartRoots(n=1)]


def test_other_events_are_not_decided_on() -> None:
    assert decide(rollout("0", 0.0, 1, 1), event=Scored(rollout="0", reward=0.0)) == []


def test_half_the_budget_starts_at_once_or_as_many_as_are_chosen() -> None:
    assert decide(event=Start()) == [StartRoots(n=4)]
    assert decide(event=Start(), initial_rollouts=8) == [StartRoots(n=8)]
    message = "branch_policy.params.initial_rollouts: 9 is more than rollout.group_size, 8"
    with pytest.raises(ConfigError) as raised:
        decide(event=Start(), initial_rollouts=9)
    assert str(raised.value) == message


def test_an_engine_without_entropies_is_refused() -> None:
    blank = RolloutView(
        id="0", root="0", parent=None, fork_turn=None, finished=True, valid=True, reward=0.0,
        turns=tuple(TurnView(index=i, entropies=(), n_tokens=3, ended=True, n_forks=0) for i in range(2)),
    )  # fmt: skip
    with pytest.raises(ConfigError) as raised:
        decide(blank)
    assert str(raised.value) == "branch_policy: value_guided needs exact entropies, and this engine reports none"


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_group_is_played_in_rounds(play: Play, deterministic: bool) -> None:
    """Root 0 fails, root 1 succeeds; the second turn is where root 0 was uncertain."""

    def script(task: str, path: str, turn: int) -> Reply:
        text = f"<python>{path} {turn}</python>" if turn < 3 else "<answer>2</answer>"
        return Reply(text=text, entropies=(2.0 if turn == 2 else 0.5,))

    async def score(one: Rollout) -> RolloutScore:
        return RolloutScore(reward=float(one.id != "0"))

    policy = ValueGuided(ValueGuidedConfig(initial_rollouts=2, rounds=2))
    rollouts = play(script, policy=policy, group_size=6, deterministic=deterministic, score=score).rollouts
    assert [(one.id, one.fork_turn) for one in rollouts if one.parent] == [
        ("0.0", 2), ("0.1", 1), ("0.2", 3), ("0.3", 2),
    ]  # fmt: skip
