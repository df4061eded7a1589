"""What a stop request does to what is running; whole runs are stopped in tests/e2e/test_signals.py."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ramet.config.resolved import Resolved
from ramet.config.schema import Config
from ramet.runs.stopped import SIGNALS, VARIABLES, resume_command
from ramet.train import preemption as module
from ramet.train.preemption import Dropped, Preemption, Stopped


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def test_without_a_loop_the_signal_raises_where_the_program_is_and_handlers_come_back():
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(Stopped, match="SIGTERM") as caught, Preemption(1).listening():
        send(signal.SIGTERM)
        time.sleep(1)
    assert caught.value.code == 143
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_signal_that_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Preemption(1).listening():
            send(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


class Clock:
    """Stands in for `time` in the module: `now` changes only when the test says so, however busy the machine is."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@in_a_loop
async def test_what_is_dropped_ends_at_once_and_what_is_finished_gets_its_share_of_the_time(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    stop, ended = Preemption(grace_s=1000.0), []

    async def work(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append(seconds)
        return "done"

    with stop.listening(), stop.deferred():
        assert await stop.drop(work(0.001)) == await stop.finish(work(0.002)) == "done"
        asyncio.get_running_loop().call_later(0.05, send, signal.SIGTERM)
        with pytest.raises(Dropped):
            await stop.drop(work(6000))
        assert await stop.finish(work(0.01)) == "done"
        clock.now = module.SHARE * stop.grace_s - 0.05
        with pytest.raises(Dropped):
            await stop.finish(work(3000))
        with pytest.raises(Dropped):
            await stop.drop(work(0))
        with pytest.raises(Dropped):
            stop.check()
    assert ended == [0.001, 0.002, 6000, 0.01, 3000], "cancelled work has cleaned up; the last one never began"
    with pytest.raises(Stopped):
        stop.settle()


@in_a_loop
async def test_work_that_does_not_let_go_is_left_behind(monkeypatch):
    monkeypatch.setattr(module, "CANCEL_S", 0.02)
    stop, released = Preemption(grace_s=60), asyncio.Event()

    async def stubborn() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    with stop.listening(), stop.deferred():
        asyncio.get_running_loop().call_later(0.01, send, signal.SIGTERM)
        with pytest.raises(Dropped):
            await stop.drop(stubborn())
    released.set()


@in_a_loop
async def test_errors_of_the_work_come_through():
    async def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Preemption(1).drop(broken())


@pytest.mark.parametrize("named", [["run.name=other"], ["+run.name=null"], []])
@pytest.mark.parametrize(
    ("environment", "before"),
    [
        ({}, ""),
        ({"PYTHONPATH": "a"}, ""),
        (
            {"RAMET_PLUGINS": "mine,other", "PYTHONPATH": "my folder"},
            "PYTHONPATH='my folder' RAMET_PLUGINS=mine,other ",
        ),
        ({"RAMET_BLOCK_PLUGINS": "arpo"}, "RAMET_BLOCK_PLUGINS=arpo "),
    ],
)
def test_the_printed_command_names_the_run_once_and_survives_a_shell(
    named: list[str], environment: dict[str, str], before: str, monkeypatch: pytest.MonkeyPatch
):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    resolved = Resolved(
        job="train", config=Config(), text="", set_by_user=frozenset(), config_dir=Path("my configs"),
        overrides=["data.train=[a b.jsonl]", "+train.steps=9", *named, "train.steps=3"],
    )  # fmt: skip
    assert resume_command(resolved, "20260101-alder") == before + (
        "ramet train --config-dir 'my configs' 'data.train=[a b.jsonl]' train.steps=3 run.name=20260101-alder"
    )
