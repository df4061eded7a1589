"""The check of rewards passes good ones and names what is wrong with each broken one."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Sequence
from typing import Any

import pytest

from ramet import Rollout, Score, per_rollout
from ramet.testing import check_reward


def contains_gold(rollout: Rollout) -> float:
    return float(any(gold in rollout.reply for gold in rollout.task.answer))


class Relative:
    """Above the group's mean length or not: uses the whole group, keeps its order."""

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | Score | None]:
        mean = sum(r.n_sampled_tokens for r in group) / len(group)
        return [Score(value=float(r.n_sampled_tokens > mean), parts={"tokens": r.n_sampled_tokens}) for r in group]


async def judged(rollout: Rollout) -> float:
    return 1.0


def test_an_async_function_of_one_rollout_is_refused_where_it_is_made_a_reward() -> None:
    with pytest.raises(TypeError, match=r"per_rollout takes a plain function; an async reward is `async def __call__"):
        per_rollout(judged)  # type: ignore[arg-type]


async def nothing_judged(group: Sequence[Rollout]) -> Sequence[float | Score | None]:
    return [None] * len(group)


class TooFew:
    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float]:
        return [1.0 for rollout in group if rollout.answer]


class Sorted:
    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float]:
        return sorted(contains_gold(rollout) for rollout in group)


class Counting:
    def __init__(self) -> None:
        self.n = itertools.count()

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float]:
        return [float(next(self.n)) for _ in group]


class TokensOutside:
    async def __call__(self, group: Sequence[Rollout]) -> Sequence[Score]:
        return [Score(value=0.0, token_rewards={rollout.n_response_tokens: 1.0}) for rollout in group]


class Renames:
    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float]:
        group.reverse()  # type: ignore[attr-defined]
        return [0.0] * len(group)


class Sync:
    def __call__(self, group: Sequence[Rollout]) -> Sequence[float]:
        return [0.0] * len(group)


class Generator:
    async def __call__(self, group: Sequence[Rollout]) -> Any:
        return (0.0 for _ in group)


@pytest.mark.parametrize("good", [per_rollout(contains_gold), Relative(), nothing_judged])
def test_a_good_reward_passes(good: Any) -> None:
    check_reward(good)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (TooFew(), "returned 4 scores for 6 rollouts|returned 3 scores for 6 rollouts"),
        (per_rollout(lambda r: float("nan")), "with nan: give a finite number, or None for not judged"),
        (per_rollout(lambda r: Score(value=1.0, parts={"f1": float("inf")})), "part 'f1' with inf"),
        (per_rollout(lambda r: "1.0"), "with '1.0': give a float"),  # type: ignore[arg-type,return-value]
        (Sorted(), "do not follow the order"),
        (Counting(), "and then"),
        (per_rollout(lambda r: float(r.reply[0] == "<")), "crashed with IndexError.*may be empty"),
        (TokensOutside(), "token_rewards names position"),
        (Renames(), "changed the group"),
        (Sync(), "not async"),
        (Generator(), "returned generator: return a list"),
    ],
)
def test_a_broken_reward_is_caught(broken: Any, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_reward(broken)
    assert re.search(message, str(caught.value))


def test_a_reward_that_blocks_the_event_loop_is_caught_with_its_line() -> None:
    async def sleeps(group: Sequence[Rollout]) -> list[float]:
        time.sleep(0.8)
        return [0.0] * len(group)

    line = f"core/tests/testing/test_check_reward.py:{sleeps.__code__.co_firstlineno + 1}"
    with pytest.raises(AssertionError) as caught:
        check_reward(sleeps)
    assert re.fullmatch(
        rf"blocks the event loop for 0\.\d s in sleeps \({line}\), and every rollout with it: await "
        r"run_blocking\(function, …\), asyncio\.sleep or an asynchronous client",
        str(caught.value),
    )


def test_what_blocks_the_first_call_only_is_no_defect() -> None:
    imported: list[bool] = []

    async def imports(group: Sequence[Rollout]) -> list[float]:
        if not imported:
            time.sleep(0.8)
            imported.append(True)
        return [0.0] * len(group)

    check_reward(imports)
