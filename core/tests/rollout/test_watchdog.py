from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ramet.config.schema import ToolConfig
from ramet.rollout.watchdog import Wait, Watchdog
from ramet.testing.doubles import echo_tool
from ramet.types import ToolCall, ToolResult


def test_the_oldest_wait_is_printed_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        dog = Watchdog(0.1)
        with dog.watching(), dog.wait("tool:python rollout train/3/task7/0.1"):
            await asyncio.sleep(0.05)
            with dog.wait("a younger wait"):
                await asyncio.sleep(0.15)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "oldest wait: tool:python rollout train/3/task7/0.1 for 0." in caplog.text
    assert "(2 waits in all)" in caplog.text
    assert "younger" not in caplog.text


def test_waits_that_change_while_they_are_read_are_read_again() -> None:
    """The loop's thread enters and leaves waits beside the watchdog's, which must not die of it."""

    class Changing(dict[Wait, float]):
        reads = 0

        def items(self) -> Any:
            self.reads += 1
            if self.reads < 3:
                raise RuntimeError("dictionary keys changed during iteration")
            return super().items()

    dog = Watchdog(0.1)
    dog._waits = Changing()
    with dog.wait("tool:python"):
        line = dog._oldest(time.monotonic() + 1)
    assert line is not None and line.startswith("oldest wait: tool:python for 1.0 s (1 waits in all)")


def test_short_waits_are_not_printed(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        dog = Watchdog(0.2)
        with dog.watching():
            for i in range(10):
                with dog.wait(f"wait {i}"):
                    await asyncio.sleep(0.03)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert caplog.text == ""


def test_a_blocked_event_loop_is_printed_with_the_line_that_blocks_it(caplog: pytest.LogCaptureFixture) -> None:
    def blocks_the_loop() -> None:
        time.sleep(0.4)

    async def main() -> None:
        with Watchdog(0.1).watching():
            await asyncio.sleep(0.01)
            blocks_the_loop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    line = f"core/tests/rollout/test_watchdog.py:{blocks_the_loop.__code__.co_firstlineno + 1}"
    messages = [record.getMessage() for record in caplog.records]
    told = rf"the event loop has been blocked for 0\.\d s in blocks_the_loop \({line}\)"
    assert messages and all(re.fullmatch(f"{told}: no rollout can continue meanwhile", message) for message in messages)


def test_a_blocked_event_loop_is_told_after_a_second_once_for_each_line(caplog: pytest.LogCaptureFixture) -> None:
    def blocks(seconds: float) -> None:
        time.sleep(seconds)

    async def main() -> None:
        with Watchdog(60.0).watching():
            for seconds in (0.5, 1.6, 1.6):
                await asyncio.sleep(0.01)
                blocks(seconds)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    line = f"core/tests/rollout/test_watchdog.py:{blocks.__code__.co_firstlineno + 1}"
    (message,) = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(
        rf"the event loop has been blocked for 1\.\d s in blocks \({line}\): no rollout can continue meanwhile", message
    )


def test_the_thread_ends_with_the_watch() -> None:
    async def main() -> None:
        with Watchdog(0.04).watching():
            assert any(t.name == "ramet-watchdog" for t in threading.enumerate())
        await asyncio.sleep(0.1)

    asyncio.run(main())
    assert not [t for t in threading.enumerate() if t.name == "ramet-watchdog"]


def test_a_worker_prints_which_tool_call_of_which_rollout_it_waits_for(
    play: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ramet.rollout.watchdog.THRESHOLD_S", 0.1)
    tools = {"python": (echo_tool(delay_s=0.4), ToolConfig())}
    with caplog.at_level(logging.WARNING):
        play(
            lambda t, p, turn: "<answer>1</answer>" if turn else "<python>1</python>",
            tools=tools,
            group_size=1,
        )
    assert "oldest wait: tool:python rollout train/3/t/0 for 0." in caplog.text


def test_a_tool_that_blocks_the_loop_is_named(
    play: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ramet.rollout.watchdog.THRESHOLD_S", 0.1)

    class Blocks:
        schema = echo_tool().schema

        async def __call__(self, call: ToolCall) -> ToolResult:
            time.sleep(0.4)
            return ToolResult(text="1")

    with caplog.at_level(logging.WARNING):
        play(
            lambda t, p, turn: "<answer>1</answer>" if turn else "<python>1</python>",
            tools={"python": (Blocks(), ToolConfig())},
            group_size=1,
        )
    assert "blocked" in caplog.text
    assert "in __call__ (" in caplog.text
