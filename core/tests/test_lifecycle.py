"""`start` and `aclose` of components: errors that name them, and closing that keeps no other from it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ramet import lifecycle
from ramet.components.services import RunServices
from ramet.errors import ConfigError, InfraError, PluginError
from ramet.lifecycle import close_component, start_component


class Starts:
    def __init__(self, error: Exception) -> None:
        self.error = error

    async def start(self, services: Any) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConfigError("no key in the environment"), "no key in the environment"),
        (InfraError("the index does not answer"), "the index does not answer"),
        (OSError("disk full"), "tool 'a' could not start: OSError: disk full"),
    ],
)
def test_a_component_that_cannot_start_is_reported_with_the_reason(
    tmp_path: Path, error: Exception, expected: str
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
        if self.name == "hangs":
            await asyncio.sleep(60)
        self.is_closed = True


def test_one_that_cannot_be_closed_is_named_and_keeps_no_other_from_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "CLOSE_TIMEOUT_S", 0.05)
    components = [Held(name) for name in ("raises", "exits", "hangs", "good")]

    async def close_all() -> None:
        await close_component(object(), "what has no `aclose`")
        for one in components:
            await close_component(one, f"tool {one.name}")

    asyncio.run(close_all())
    assert [one.name for one in components if one.is_closed] == ["good"]
    assert [record.getMessage() for record in caplog.records] == [
        "aclose of tool raises failed: ValueError('no process')",
        "aclose of tool exits failed: SystemExit(3)",
        "aclose of tool hangs failed: TimeoutError()",
    ]
