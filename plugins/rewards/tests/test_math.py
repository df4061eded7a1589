"""The reward `math`, with its real processes."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet import ConfigError, Score, Task, reward_named, user_prompt
from ramet.helpers import ProcessLost, ProcessPool
from ramet.testing.reward import check_reward
from ramet.types.option import option_problems
from ramet_rewards import comparison
from ramet_rewards.comparison import CpuBudget, MathComparer, Verdict
from ramet_rewards.config import MathConfig
from ramet_rewards.math import MathReward

HANGS = "10^{10^{10^{10}}} + \\sqrt{2}"  # evaluating it never ends
SLOW = r"\int_0^1 \sin(\sin(\sin(x^3+x))) \cdot e^{\cos(x^5)} dx"  # within all bounds, but long to compute


@pytest.fixture(scope="module")
def reward() -> Iterator[MathReward]:
    made = MathReward(MathConfig(workers=1))
    yield made
    asyncio.run(made.aclose())


def _processes(reward: MathReward) -> list[subprocess.Popen[bytes]]:
    """Of the workers that compare nothing now."""
    return [process._process for process in reward.comparer._pool._idle]


def _scores(reward: MathReward, group: list[Any]) -> list[Any]:
    scores = asyncio.run(reward(group))  # type: ignore[arg-type]
    return [score.value if isinstance(score, Score) else score for score in scores]


class Pool(ProcessPool):
    """As the comparer makes it. `timeout_s` is of CPU time, `deadline_s` of wall time."""

    def __init__(self, timeout_s: float, deadline_s: float = 60.0) -> None:
        super().__init__("ramet_rewards.formula_worker", size=1, deadline_s=deadline_s, prepare_s=60.0)
        self.timeout_s = timeout_s

    async def compare(self, gold: str, answer: str) -> Any:
        return await self.ask({"golds": [gold], "answer": answer, "timeout_s": self.timeout_s})


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("1/2", r"\frac12"),
        (r"\frac{1}{2}", "0.5"),
        (r"3\sqrt{3}-6", r"-6+3\sqrt3"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"\{1,2\}", r"\{2,1\}"),
        ("3", "x=3"),
        (r"90^\circ", "90"),
        ("50%", r"50\%"),
        ("10^{10}", "10000000000"),
        ("18", r"The answer is \boxed{18}."),
        (r"\boxed{18}", "$18$"),
    ],
)
def test_equal_answers_score_one_however_written(reward: MathReward, write: Any, gold: str, answer: str) -> None:
    assert _scores(reward, [write.answer(answer, gold)]) == [1.0]


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("5", "-5"),
        ("(1,2)", "(2,1)"),
        ("1/2", "0.51"),
        (r"\frac{1}{2}", "12"),
        ("18", ""),
        ("18", r"\boxed{}"),
        ("18", "\\frac{{{"),
        ("18", "I do not know"),
        (r"\pi", "3.14"),
    ],
)
def test_wrong_and_unreadable_answers_score_zero(reward: MathReward, write: Any, gold: str, answer: str) -> None:
    assert _scores(reward, [write.answer(answer, gold)]) == [0.0]


def test_no_answer_scores_zero_and_any_gold_answer_is_enough(reward: MathReward, write: Any) -> None:
    golds = ("7", r"\frac{3}{4}")
    group = [write.answer(answer, *golds, id=str(i)) for i, answer in enumerate([None, "0.75", "7", "8"])]
    assert _scores(reward, group) == [0.0, 1.0, 1.0, 0.0]


def test_a_task_without_a_gold_answer_is_refused(reward: MathReward, write: Any) -> None:
    with pytest.raises(ConfigError, match="task 't' has no gold answer"):
        _scores(reward, [write.answer("1")])


NO_GOLD = r"no gold answer, or one with nothing in its box; got ['\\boxed{}']"


@pytest.mark.parametrize(
    ("name", "golds", "problem"),
    [
        *((name, (r"\boxed{}",), NO_GOLD) for name in ("math", "math_dapo", "deep_research", "format_correct")),
        ("llm_judge", (), "no gold answer, or one with nothing in its box; got []"),
        ("math", (r"\boxed{}", "1"), None),
        ("gsm8k", ("It is 3. #### 18",), None),
        ("gsm8k", ("18", "many"), "the gold answer 'many' is not a number, and does not end in #### and one"),
    ],
)
def test_tasks_that_cannot_be_judged_are_found_before_the_start(
    name: str, golds: tuple[str, ...], problem: str | None
) -> None:
    reward: Any = reward_named(name)
    assert reward.check_task(Task(id="t", prompt=user_prompt("?"), answer=golds)) == problem


def test_the_reward_keeps_the_contract_and_pickles(reward: MathReward) -> None:
    check_reward(reward)
    assert pickle.loads(pickle.dumps(reward)).config == MathConfig(workers=1)


def test_an_answer_that_takes_too_much_cpu_time_is_wrong_and_the_next_one_is_judged(write: Any) -> None:
    reward = MathReward(MathConfig(timeout_s=0.5, workers=1))
    _scores(reward, [write.answer("1/2", r"\frac12 + 0")])
    [first] = _processes(reward)
    started = time.monotonic()
    assert _scores(reward, [write.answer(SLOW, r"\sqrt{2}")]) == [0.0]
    assert time.monotonic() - started < 20.0
    assert _processes(reward) == [first]  # only a copy of it has ended
    assert _scores(reward, [write.answer(r"\frac{\sqrt{8}}{2}", r"\sqrt{2}")]) == [1.0]
    asyncio.run(reward.aclose())


def test_a_batch_of_answers_that_are_never_computed_to_an_end_costs_its_budget_and_is_wrong(write: Any) -> None:
    """And not as many times the limit as there are answers, which the time-out of the reward would mask."""
    reward = MathReward(MathConfig(timeout_s=3.0, budget_s=3.0, workers=1))
    bombs = [write.answer(f"{SLOW} + {i}", r"\sqrt{2}", id=str(i)) for i in range(4)]
    right = write.answer(r"\frac{\sqrt{8}}{2}", r"\sqrt{2}", id="right")
    scores = asyncio.run(reward([*bombs, right]))  # type: ignore[arg-type]
    counted = [(score.value, score.parts["expensive"]) for score in scores]  # type: ignore[union-attr]
    assert counted == [(0.0, 1.0)] * 4 + [(1.0, 0.0)]
    [process] = _processes(reward)
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    of_copies = sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")  # cutime and cstime (proc(5))
    assert 3.0 < of_copies < 9.0  # three seconds, then three quarters, and the gold answer in each copy; not twelve
    asyncio.run(reward.aclose())


def test_the_budget_of_expensive_answers_fills_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(comparison.time, "monotonic", lambda: now[0])
    budget = CpuBudget(timeout_s=5.0, budget_s=10.0)
    budget.spend(5.0)
    assert budget.allowed_s() == 5.0
    budget.spend(5.0)
    assert budget.allowed_s() == 0.25
    now[0] += 1.0
    assert budget.allowed_s() == 5.0
    budget.spend(5.0)
    now[0] += 50.0
    assert budget.allowed_s() == 5.0
    assert CpuBudget(timeout_s=0.1, budget_s=1.0).allowed_s() == 0.1


async def lost(asked: Awaitable[Any]) -> ProcessLost:
    with pytest.raises(ProcessLost) as caught:
        await asked
    return caught.value


def test_a_gold_answer_that_cannot_be_computed_is_not_the_answers_fault() -> None:
    async def steps() -> None:
        pool = Pool(timeout_s=0.5)
        assert await pool.compare(r"\frac{1}{2}", "0.5") is True
        pool.prepare_s = 3.0
        assert not (await lost(pool.compare(HANGS, "x+1"))).by_request
        await pool.aclose()

    asyncio.run(steps())


def test_a_process_that_was_killed_is_replaced_and_one_that_dies_at_work_judges_nothing() -> None:
    async def steps() -> None:
        pool = Pool(timeout_s=20.0)
        assert await pool.compare("1/2", "0.5") is True
        [idle] = pool._idle
        os.kill(idle._process.pid, signal.SIGKILL)
        idle._process.wait()
        assert await pool.compare("1/2", "0.5") is True
        [busy] = pool._idle
        verdict = asyncio.ensure_future(pool.compare("1/2", HANGS))
        await asyncio.sleep(0.5)
        os.kill(busy._process.pid, signal.SIGKILL)  # as the kernel does when memory is short
        error = await lost(verdict)
        assert (str(error), error.by_request) == ("the process ended", False)
        await pool.aclose()

    asyncio.run(steps())


def test_a_process_that_answers_nothing_is_given_up() -> None:
    """Stopped, it uses no CPU time: the host's doing."""

    async def steps() -> None:
        pool = Pool(timeout_s=0.3, deadline_s=3.0)
        assert await pool.compare("1/2", "0.5") is True
        pool.prepare_s = 2.0
        [stopped] = pool._idle
        os.killpg(stopped._process.pid, signal.SIGSTOP)
        assert not (await lost(pool.compare("1/2", "0.5"))).by_request
        assert stopped._process.poll() is not None
        await pool.aclose()

    asyncio.run(steps())


def test_an_answer_that_its_caller_gives_up_ends_its_process_and_is_charged() -> None:
    """Else a reward with a short time-out would mask every expensive answer, and none would make the next one cheap."""

    async def steps() -> None:
        comparer = MathComparer(MathConfig(workers=1))
        assert await comparer.compare([r"\sqrt{2}"], r"\frac{\sqrt{8}}{2}") == Verdict.EQUAL
        [process] = comparer._pool._idle
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await comparer.compare([r"\sqrt{2}"], SLOW)
        assert await comparer.compare([r"\sqrt{2}"], r"\frac{\sqrt{8}}{2}") == Verdict.EQUAL
        assert process._process.poll() == -signal.SIGKILL
        assert 4.0 < comparer._budget._spent_s <= 5.0
        await comparer.aclose()

    asyncio.run(steps())


def test_answers_that_were_not_computed_to_an_end_are_counted(write: Any) -> None:
    reward = MathReward(MathConfig(timeout_s=0.5, workers=1))
    group = [write.answer(a, r"\sqrt{2}", id=str(i)) for i, a in enumerate(["9^9^9^9", "x" * 1_000_000, SLOW, "3"])]
    scores = asyncio.run(reward(group))  # type: ignore[arg-type]
    counted = [(score.value, score.parts["refused"], score.parts["expensive"]) for score in scores]  # type: ignore[union-attr]
    assert counted == [(0.0, 1.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.0, 0.0, 0.0)]
    asyncio.run(reward.aclose())


def test_an_answer_whose_process_somebody_ended_is_not_judged(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = MathReward(MathConfig(workers=1))

    class Gone:
        async def ask(self, request: Any, allowance: Any) -> Any:
            raise ProcessLost("the process ended", by_request=False)

    monkeypatch.setattr(reward.comparer, "_pool", Gone())
    assert _scores(reward, [write.answer("x+1", r"\sqrt{2}"), write.answer("5", r"\sqrt{2}", id="1")]) == [None, None]


def test_options_out_of_range_are_refused() -> None:
    problems = option_problems(MathConfig(timeout_s=-1, budget_s=0, workers=0))
    assert [problem.split()[0] for problem in problems] == ["timeout_s", "budget_s", "workers"]
