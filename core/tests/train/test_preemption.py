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


@in_a_loop
async def test_what_is_dropped_ends_at_once_and_what_is_finished_gets_its_share_of_the_time():
    stop, ended = Preemption(grace_s=0.4), []

    async def work(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append(seconds)
        return "done"

    with stop.listening(), stop.deferred():
        assert await stop.drop(work(0.001)) == await stop.finish(work(0.002)) == "done"
        asyncio.get_running_loop().call_later(0.05, send, signal.SIGTERM)
        started = time.monotonic()
        with pytest.raises(Dropped):
            await stop.drop(work(60))
        assert time.monotonic() - started < 0.2
        assert await stop.finish(work(0.01)) == "done"
        with pytest.raises(Dropped):
            await stop.finish(work(30))
        assert 0.2 < time.monotonic() - started < 0.4
        with pytest.raises(Dropped):
            await stop.drop(work(0))
        with pytest.raises(Dropped):
            stop.check()
    assert ended == [0.001, 0.002, 60, 0.01, 30], "cancelled work has cleaned up; the last one never began"
    with pytest.raises(Stopped):
        stop.settle()


@in_a_loop
async def test_work_that_does_not_let_go_is_left_behind(monkeypatch):
    monkeypatch.setattr(module, "CANCEL_S", 0.02)
    stop = Preemption(grace_s=60)

    released, ends_at = False, time.monotonic() + 10

    async def stubborn() -> None:
        while not released and time.monotonic() < ends_at:
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                continue

    with stop.listening(), stop.deferred():
        asyncio.get_running_loop().call_later(0.01, send, signal.SIGINT)
        with pytest.raises(Dropped):
            await stop.drop(stubborn())
    released = True


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
