"""The reward `math`, with its real processes."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ramet import ConfigError
from ramet.testing.reward import check_reward
from ramet_rewards import judge as judge_module
from ramet_rewards.config import MathConfig
from ramet_rewards.judge import Judge
from ramet_rewards.math import MathReward

HANGS = "10^{10^{10^{10}}} + \\sqrt{2}"  # evaluating it never ends
SLOW = r"\int_0^1 \sin(\sin(\sin(x^3+x))) \cdot e^{\cos(x^5)} dx"  # within all bounds, but long to compute


@pytest.fixture(scope="module")
def reward() -> Iterator[MathReward]:
    made = MathReward(MathConfig(workers=1))
    yield made
    made._judge.close()


def _processes(reward: MathReward) -> list[subprocess.Popen[bytes]]:
    """Of the workers that compare nothing now."""
    idle = []
    while not reward._judge._idle.empty():
        idle.append(reward._judge._idle.get_nowait())
    for worker in idle:
        reward._judge._idle.put(worker)
    return [worker._process for worker in idle]


def _scores(reward: MathReward, group: list[Any]) -> list[Any]:
    return list(asyncio.run(reward(group)))  # type: ignore[arg-type]


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
    assert first.wait() == -signal.SIGPROF
    assert _scores(reward, [write.answer(r"\frac{\sqrt{8}}{2}", r"\sqrt{2}")]) == [1.0]
    reward._judge.close()


def test_a_gold_answer_that_cannot_be_computed_is_not_the_answers_fault(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = Judge(workers=1, timeout_s=0.5)
    assert judge.submit([r"\frac{1}{2}"], "0.5").result() is True
    monkeypatch.setattr(judge_module, "START_S", 3.0)
    assert judge.submit([HANGS], "x+1").result() is None
    judge.close()


def test_a_process_that_was_killed_is_replaced_and_one_that_dies_at_work_judges_nothing() -> None:
    judge = Judge(workers=1, timeout_s=20.0)
    assert judge.submit(["1/2"], "0.5").result() is True
    idle = judge._idle.get_nowait()
    judge._idle.put(idle)
    os.kill(idle._process.pid, signal.SIGKILL)
    idle._process.wait()
    assert judge.submit(["1/2"], "0.5").result() is True
    busy = judge._idle.get_nowait()
    judge._idle.put(busy)
    verdict = judge.submit(["1/2"], HANGS)
    time.sleep(0.5)
    os.kill(busy._process.pid, signal.SIGKILL)  # as the kernel does when memory is short
    assert verdict.result() is None
    judge.close()


def test_a_process_that_answers_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, it uses no CPU time: the host's doing."""
    monkeypatch.setattr(judge_module, "GRACE_S", 0.2)
    judge = Judge(workers=1, timeout_s=0.3)
    assert judge.submit(["1/2"], "0.5").result() is True
    monkeypatch.setattr(judge_module, "START_S", 2.0)
    stopped = judge._idle.get_nowait()
    judge._idle.put(stopped)
    os.kill(stopped._process.pid, signal.SIGSTOP)
    assert judge.submit(["1/2"], "0.5").result() is None
    assert stopped._process.poll() is not None
    judge.close()


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"timeout_s is -1(.|\n)*rewards\.math\.params\.workers is 0"):
        MathReward(MathConfig(timeout_s=-1, workers=0))
