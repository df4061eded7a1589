"""Benchmarks have a start and an end, as tools and rewards do; one that breaks the contract ends the measuring."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from core.tests.evaluate.test_results import HEADER, INFO, rollout

from ramet.components.services import RunServices
from ramet.errors import PluginError
from ramet.evaluate.measure import measure, started
from ramet.evaluate.partial import PartialResults
from ramet.rollout.plan import RolloutPlan
from ramet.types import Benchmark, Group, Rollout, Services, Task, user_prompt

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


class Slow:
    """Rollouts of which the first group is there at once, and the others never."""

    def __init__(self) -> None:
        self.cancelled = False

    def group_size(self, plan: RolloutPlan) -> int:
        return 1

    async def run(self, tasks: Sequence[Task], *, on_group: Callable[[Group], None], **more: Any) -> list[Group]:
        on_group(Group(task=tasks[0], rollouts=(rollout(tasks[0], "0"),)))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise AssertionError("nobody sets it")


class Broken:
    """Gives a metric that it does not have."""

    info = INFO

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        return {"f2": 1.0}


def test_a_benchmark_that_breaks_the_contract_ends_the_playing_at_once(tmp_path: Path) -> None:
    slow, partial = Slow(), PartialResults(tmp_path / "results.json", HEADER)
    tasks = [Task(id=name, prompt=user_prompt("?"), answer=("1",)) for name in "ab"]

    async def work() -> None:
        async with asyncio.timeout(5):
            await measure(
                slow,  # type: ignore[arg-type]
                {"arithmetic": Broken()},  # type: ignore[dict-item]
                {"arithmetic": tasks},
                plans={"arithmetic": RolloutPlan(group_size=1)},
                partial=partial,
            )

    with pytest.raises(PluginError, match=r"task 'a', rollout 0: score gave \['f2'\], info.metrics names "):
        asyncio.run(work())
    assert slow.cancelled
