"""The branch policy `token_entropy`: forks at the most uncertain token of a turn."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from ramet.errors import ConfigError
from ramet.rollout.branching.token_entropy import TokenEntropy
from ramet.rollout.config import TokenEntropyConfig
from ramet.testing import check_branch_policy
from ramet.testing.doubles import Reply
from ramet.types import (
    AfterTool,
    Finished,
    FirstTokens,
    Fork,
    GroupView,
    Idle,
    RolloutView,
    Start,
    StartRoots,
    StopReason,
    Task,
    TurnView,
    user_prompt,
)

Play = Callable[..., Any]
AFTER = AfterTool(rollout="0", turn=1)
END = Finished(rollout="0", stop=StopReason.ANSWER)


def turn(index: int, *entropies: float, n_forks: int = 0) -> TurnView:
    return TurnView(index=index, entropies=entropies, n_tokens=len(entropies), ended=True, n_forks=n_forks)


def decide(event: Any, *turns: TurnView, left: int = 3, options: Any = None, **fork: Any) -> Any:
    """Of a rollout with these turns."""
    seen = RolloutView(
        id="0", root="0", parent=None, turns=turns, finished=event is END, valid=True, **{"fork_turn": None, **fork}
    )
    task = Task(id="t", prompt=user_prompt("?"))
    view = GroupView(task=task, budget=4, budget_left=left, rollouts=(seen,), vocab_size=8)
    return TokenEntropy(TokenEntropyConfig(**options or {})).decide(event, view, Random(0))


def test_the_contract_is_kept() -> None:
    check_branch_policy(TokenEntropy(TokenEntropyConfig()))
    check_branch_policy(TokenEntropy(TokenEntropyConfig(min_entropy=0, max_forks=9)))


def test_an_ended_turn_is_forked_at_its_most_uncertain_token() -> None:
    assert decide(AFTER, turn(0, 0.1, 0.7, 1.2, 0.9), turn(1)) == [Fork(rollout="0", turn=0, token=2)]
    assert decide(END, turn(0, 9, 9), turn(1, 0.1, 0.7)) == [Fork(rollout="0", turn=1, token=1)]


def test_the_first_token_after_a_tool_result_counts_and_the_first_of_all_does_not() -> None:
    assert decide(END, turn(0, 1), turn(1, 2.0, 0.7)) == [Fork(rollout="0", turn=1, token=0)]
    assert decide(AFTER, turn(0, 2.0, 0.7), turn(1)) == [Fork(rollout="0", turn=0, token=1)]
    assert decide(AFTER, turn(0, 2.0), turn(1)) == []


def test_a_fork_is_forked_after_its_fork_point_alone() -> None:
    turns = turn(0, 0.1, 2.0, 1.8, 0.6), turn(1)
    assert decide(AFTER, *turns, fork_turn=0, fork_token=1) == [Fork(rollout="0", turn=0, token=2)]
    assert decide(AFTER, *turns, fork_turn=0, fork_token=3) == []


def test_certain_tokens_forked_rollouts_and_masked_ones_are_left_alone() -> None:
    assert decide(AFTER, turn(0, 0.1, 0.4), turn(1)) == []
    assert decide(AFTER, turn(0, 0.1, 0.4), turn(1), options={"min_entropy": 0.4}) != []
    twice = turn(0, 1, 1, n_forks=1), turn(1)
    assert decide(AFTER, *twice) == []
    assert decide(AFTER, *twice, options={"max_forks": 2}) != []
    assert decide(END, turn(0, 1, 1), left=0) == []
    task, lost = Task(id="t", prompt=user_prompt("?")), END
    view = RolloutView(
        id="0", root="0", parent=None, fork_turn=None, turns=(turn(0, 1, 1),), finished=True, valid=False
    )
    group = GroupView(task=task, budget=4, budget_left=3, rollouts=(view,), vocab_size=8)
    assert TokenEntropy(TokenEntropyConfig()).decide(lost, group, Random(0)) == []


def test_what_is_left_starts_from_the_prompt() -> None:
    assert decide(Start()) == [StartRoots(n=2)]
    assert decide(Idle(), turn(0, 1)) == [StartRoots(n=3)]
    assert decide(FirstTokens(rollout="0", turn=1, entropies=(9.0,)), turn(0, 1)) == []


def test_an_engine_without_entropies_is_refused() -> None:
    blank = TurnView(index=0, entropies=(), n_tokens=3, ended=True, n_forks=0)
    with pytest.raises(ConfigError, match=r"^branch_policy: token_entropy needs exact entropies"):
        decide(AFTER, blank, turn(1))


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_group_forks_each_root_once(play: Play, deterministic: bool) -> None:
    def script(task: str, path: str, turn: int) -> Reply:
        text = f"<python>{path} {turn}</python>" if turn < 2 else "<answer>2</answer>"
        return Reply(text=text, entropies=(0.1, 0.2, 0.9, 0.1) if path in "01" else (0.1,))

    policy = TokenEntropy(TokenEntropyConfig(initial_rollouts=2, max_forks=1))
    rollouts = play(script, policy=policy, group_size=5, deterministic=deterministic).rollouts
    assert [(one.id, one.fork_turn, one.fork_token) for one in rollouts] == [
        ("0", None, 0), ("0.0", 0, 2), ("1", None, 0), ("1.0", 0, 2), ("2", None, 0),
    ]  # fmt: skip
