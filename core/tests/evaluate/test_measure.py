"""Benchmarks have a start and an end, as tools and rewards do; one that breaks the contract ends the measuring."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from core.tests.evaluate.test_results import HEADER, INFO, rollout

from ramet.components.services import RunServices
from ramet.config.schema import RolloutConfig, SystemPrompt
from ramet.errors import PluginError, RametError
from ramet.evaluate.files import read_results
from ramet.evaluate.measure import measure, started
from ramet.evaluate.partial import PartialResults
from ramet.models.encoder import Encoder
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.config import TagsConfig
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import RolloutWorker
from ramet.testing.doubles import ScriptedEngine, tiny_encoder
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

    async def run(self, request: RolloutRequest, *, on_group: Callable[[Group], None]) -> list[Group]:
        task = request.tasks[0]
        on_group(Group(task=task, rollouts=(rollout(task, "0"),)))
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


class Playing:
    """The worker that trains, as jobs see it."""

    def __init__(self, encoder: Encoder) -> None:
        self.worker = RolloutWorker(
            engine=ScriptedEngine(lambda *_: "<answer>" + "4" * 50 + "</answer>", encoder),
            encoder=encoder,
            step=Tags(TagsConfig()),
            branch_policy=NoBranching(),
            tools={},
            config=RolloutConfig(max_concurrent=8),
            system_prompt=SystemPrompt.NEVER,
            deterministic=False,
            seed=1,
        )

    def group_size(self, plan: RolloutPlan) -> int:
        return plan.resolved(self.worker.config).group_size

    async def run(self, request: RolloutRequest, *, on_group: Callable[[Group], None]) -> list[Group]:
        return await self.worker.run(request, on_group=on_group)


class Right:
    info = INFO

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        return {"accuracy": 1.0, "f1": 1.0}


def test_groups_are_let_go_when_they_are_scored_and_on_disk(tmp_path: Path) -> None:
    """40,000 rollouts of a benchmark would be 3 GB."""
    partial = PartialResults(tmp_path / "results.json", HEADER)
    tasks = [Task(id=f"{number:03}", prompt=user_prompt("2 + 2?" * 50), answer=("4",)) for number in range(40)]
    alive: list[int] = []

    def n_rollouts() -> int:
        gc.collect()
        return sum(type(one) is Rollout for one in gc.get_objects())

    others = n_rollouts()  # of tests before

    def report(benchmark: str, done: int, total: int) -> None:
        if done % 10 == 0:
            alive.append(n_rollouts() - others)

    async def work() -> None:
        plans = {"arithmetic": RolloutPlan(group_size=2, branch=False)}
        benchmarks = {"arithmetic": Right()}
        playing = Playing(tiny_encoder())
        await measure(playing, benchmarks, {"arithmetic": tasks}, plans=plans, partial=partial, report=report)  # type: ignore[arg-type]

    asyncio.run(work())
    assert len(alive) == 4 and max(alive) <= 16  # four groups play, as many are scored
    held = [one for task in partial._found.tasks.values() for one in task.rollouts]
    assert len(held) == 80 and not any(one.response for one in held)
    (found,) = partial.finish().benchmarks
    body = read_results(tmp_path / "results.json")
    assert found.metrics[0].avg.mean == 1 and [task["task"] for task in body["results"][0]["tasks"]] == [
        task.id for task in tasks
    ]
    assert all(one["answer"] == "4" * 50 for task in body["results"][0]["tasks"] for one in task["rollouts"])
    assert all(task["prompt"].count("2 + 2?") == 50 for task in body["results"][0]["tasks"])


def test_a_task_without_a_group_ends_the_measuring(tmp_path: Path) -> None:
    class Lazy(Slow):
        async def run(self, request: RolloutRequest, **more: Any) -> list[Group]:
            return []

    with pytest.raises(RametError) as caught:
        asyncio.run(
            measure(
                Lazy(),  # type: ignore[arg-type]
                {"arithmetic": Right()},  # type: ignore[dict-item]
                {"arithmetic": [Task(id=name, prompt=user_prompt("?"), answer=("1",)) for name in "abcd"]},
                plans={"arithmetic": RolloutPlan(group_size=1)},
                partial=PartialResults(tmp_path / "results.json", HEADER),
            )
        )
    assert str(caught.value) == "asked for rollouts of 4 tasks, got rollouts of 0; missing: a, b, c"


class Cancelling:
    """Its judge's own task was cancelled, as when a client of its is closed; nobody cancelled the evaluation."""

    info = INFO

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        raise asyncio.CancelledError


def test_a_benchmark_that_cancels_itself_has_not_judged_and_loses_no_task(tmp_path: Path) -> None:
    partial = PartialResults(tmp_path / "results.json", HEADER)
    tasks = [Task(id=name, prompt=user_prompt("?"), answer=("4",)) for name in "ab"]
    plans = {"arithmetic": RolloutPlan(group_size=2, branch=False)}
    benchmarks = {"arithmetic": Cancelling()}
    asyncio.run(measure(Playing(tiny_encoder()), benchmarks, {"arithmetic": tasks}, plans=plans, partial=partial))  # type: ignore[arg-type]
    (found,) = partial.results().benchmarks
    assert found.judged == "0 of 4 judged"
