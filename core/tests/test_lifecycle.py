"""`start` and `aclose` of components: errors that name them, and closing that keeps no other from it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ramet.components.services import RunServices
from ramet.errors import ConfigError, InfraError, PluginError
from ramet.plugins import lifecycle
from ramet.plugins.lifecycle import close_component, start_component


class Starts:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def start(self, services: Any) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConfigError("no key in the environment"), "no key in the environment"),
        (InfraError("the index does not answer"), "the index does not answer"),
        (OSError("disk full"), "tool 'a' could not start: OSError: disk full"),
        (SystemExit(3), "tool 'a' could not start: SystemExit: 3"),
        (asyncio.CancelledError("own"), "tool 'a' could not start: CancelledError: own"),
    ],
)
def test_a_component_that_cannot_start_is_reported_with_the_reason(
    tmp_path: Path, error: BaseException, expected: str
) -> None:
    kind = type(error) if isinstance(error, ConfigError | InfraError) else PluginError
    with pytest.raises(kind) as caught:
        asyncio.run(start_component(Starts(error), "tool 'a'", RunServices(folder=tmp_path, seed=7).of("tools.a")))
    line = f" (core/tests/test_lifecycle.py:{Starts.start.__code__.co_firstlineno + 1})"
    assert str(caught.value) == expected + line * (kind is PluginError)


class Held:
    def __init__(self, name: str) -> None:
        self.name = name
        self.is_closed = False

    async def aclose(self) -> None:
        if self.name == "raises":
            raise ValueError("no process")
        if self.name == "exits":
            raise SystemExit(3)
        if self.name == "cancels":
            task = asyncio.create_task(asyncio.sleep(60))
            task.cancel()
            await task
        if self.name == "hangs":
            await asyncio.sleep(60)
        self.is_closed = True


def test_one_that_cannot_be_closed_is_named_and_keeps_no_other_from_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "CLOSE_TIMEOUT_S", 0.05)
    components = [Held(name) for name in ("raises", "exits", "cancels", "hangs", "good")]

    async def close_all() -> None:
        await close_component(object(), "what has no `aclose`")
        for one in components:
            await close_component(one, f"tool {one.name}")

    asyncio.run(close_all())
    assert [one.name for one in components if one.is_closed] == ["good"]
    assert [record.getMessage() for record in caplog.records] == [
        "aclose of tool raises failed: ValueError('no process')",
        "aclose of tool exits failed: SystemExit(3)",
        "aclose of tool cancels failed: CancelledError()",
        "aclose of tool hangs failed: TimeoutError()",
    ]


def test_a_cancelled_task_stays_cancelled_while_a_component_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "CLOSE_TIMEOUT_S", 60)

    async def cancelled() -> bool:
        closing = asyncio.create_task(close_component(Held("hangs"), "tool hangs"))
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})
        return closing.cancelled()

    assert asyncio.run(cancelled())
