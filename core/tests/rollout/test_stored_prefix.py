"""The branch policy `stored_prefix`: all of a group from one prefix of an earlier one, or all from the prompt."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from ramet.rollout.branching.stored_prefix import StoredPrefixes
from ramet.rollout.config import StoredPrefixConfig
from ramet.testing import check_branch_policy
from ramet.types import (
    Finished,
    GroupView,
    Idle,
    PrefixView,
    Start,
    StartFrom,
    StartRoots,
    StopReason,
    Task,
    user_prompt,
)

PREFIXES = tuple(PrefixView(n_tokens=10 * n, turns=n, reward=float(n % 2)) for n in (1, 2, 3))


def decide(event: Any, prefixes: Any = PREFIXES, seed: int = 0, left: int = 6, **options: float) -> Any:
    task = Task(id="t", prompt=user_prompt("?"))
    view = GroupView(task=task, budget=6, budget_left=left, rollouts=(), vocab_size=8, prefixes=prefixes)
    return StoredPrefixes(StoredPrefixConfig(**options)).decide(event, view, Random(seed))


def test_the_contract_is_kept() -> None:
    check_branch_policy(StoredPrefixes(StoredPrefixConfig()))
    check_branch_policy(StoredPrefixes(StoredPrefixConfig(probability=1)))


def test_a_group_starts_from_one_prefix_with_the_chosen_probability() -> None:
    answers = [decide(Start(), seed=seed, probability=0.5) for seed in range(200)]
    found = Counter(action.prefix if isinstance(action, StartFrom) else None for (action,) in answers)
    assert all(action.n == 6 for (action,) in answers)
    assert 80 < found[None] < 120
    assert all(15 < found[prefix] < 52 for prefix in range(3))
    assert all(isinstance(decide(Start(), seed=seed, probability=0)[0], StartRoots) for seed in range(9))
    assert all(isinstance(decide(Start(), seed=seed, probability=1)[0], StartFrom) for seed in range(9))


def test_without_prefixes_and_for_what_is_left_it_starts_from_the_prompt() -> None:
    assert decide(Start(), prefixes=(), probability=1) == [StartRoots(n=6)]
    assert decide(Idle(), probability=1, left=2) == [StartRoots(n=2)]
    assert decide(Finished(rollout="0", stop=StopReason.ANSWER), probability=1) == []
