"""`ramet eval --replay` with benchmarks that hold something open, or that a judge scores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from core.tests.evaluate.test_results import HEADER, INFO, played, score

from ramet.evaluate.partial import PartialResults
from ramet.evaluate.replay import replay
from ramet.plugins import load_plugins
from ramet.registry import Entry
from ramet.types import Rollout, Services, Task


class Opened:
    """Scores as the file has it, from its start to its end."""

    def __init__(self, *, judged: bool) -> None:
        self.info = replace(INFO, judged=judged)
        self.calls: list[str] = []

    def load(self, split: str, limit: int | None) -> list[Task]:
        raise AssertionError("a replay needs no tasks")

    async def start(self, services: Services) -> None:
        self.calls.append(f"start {services.seed} {services.folder.is_dir()}")

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        if len(self.calls) != 1:
            raise OSError("not open")
        return score(1.0 if rollout.id == "0" else 0.0)

    async def aclose(self) -> None:
        self.calls.append("aclose")


@pytest.fixture(params=[False, True], ids=["rules", "judged"])
def benchmark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Opened:
    made, registry = Opened(judged=request.param), load_plugins().registries.benchmarks
    entry = Entry(
        kind="benchmark", name="opened", factory=lambda: made, config=None, plugin="test", distribution="test"
    )
    monkeypatch.setattr(registry, "_entries", {**registry._entries, "opened": entry})
    return made


def test_a_benchmark_is_open_while_it_scores_and_a_judge_is_not_asked(tmp_path: Path, benchmark: Opened) -> None:
    config = json.dumps({"run": {"seed": 7}, "benchmarks": {"arithmetic": {"use": "opened"}}})
    header = replace(HEADER, settings={"config": config}, benchmarks={"arithmetic": benchmark.info})
    partial = PartialResults(tmp_path / "results.json", header)
    for name in "ab":
        partial.add(*played(name, [0, 1], [score(1.0), score(0.0)]))
    partial.finish()
    found = replay(tmp_path / "results.json")
    assert (found.differences, found.n_rollouts) == ((), 4)
    judged = benchmark.info.judged
    assert found.from_file == (("arithmetic",) if judged else ())
    assert benchmark.calls == ([] if judged else ["start 7 True", "aclose"])
