"""Benchmarks have a start and an end, as tools and rewards do."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from ramet.components.services import RunServices
from ramet.errors import PluginError
from ramet.evaluate.measure import started
from ramet.types import Benchmark, Services

CALLS: list[tuple[str, str]] = []


class Asking:
    """Says what is called, and raises where it is told to."""

    def __init__(self, name: str, fails_in: str = "") -> None:
        self.name = name
        self.fails_in = fails_in

    async def start(self, services: Services) -> None:
        self._note("start")
        (services.folder / "verdicts").touch()

    async def aclose(self) -> None:
        self._note("aclose")

    def _note(self, what: str) -> None:
        CALLS.append((self.name, what))
        if self.fails_in == what:
            raise OSError("no judge")


@pytest.fixture(autouse=True)
def services(tmp_path: Path) -> RunServices:
    CALLS.clear()
    return RunServices(folder=tmp_path, seed=1)


def benchmarks(*fails_in: str) -> dict[str, Benchmark]:
    return {name: Asking(name, fails) for name, fails in zip("ab", fails_in, strict=True)}  # type: ignore[misc]


def run(benchmarks: dict[str, Benchmark], services: RunServices) -> list[tuple[str, str]]:
    """What had been called when scoring could begin."""

    async def inside() -> list[tuple[str, str]]:
        async with started(benchmarks, services):
            return list(CALLS)

    return asyncio.run(inside())


def test_each_is_started_before_the_first_score_and_closed_at_the_end(services: RunServices) -> None:
    assert run(benchmarks("", ""), services) == [("a", "start"), ("b", "start")]
    assert CALLS[2:] == [("a", "aclose"), ("b", "aclose")]
    assert (services.folder / "benchmarks.b" / "verdicts").exists()


def test_one_that_cannot_start_is_named_and_the_others_are_closed(services: RunServices) -> None:
    with pytest.raises(PluginError, match=r"^benchmark 'b' .* could not start: OSError: no judge"):
        run(benchmarks("", "start"), services)
    assert CALLS[2:] == [("a", "aclose"), ("b", "aclose")]


def test_what_closing_raises_is_logged_and_the_others_are_closed(
    services: RunServices, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run(benchmarks("aclose", ""), services)
    assert CALLS[2:] == [("a", "aclose"), ("b", "aclose")]
    assert "aclose of benchmark 'a'" in caplog.text
