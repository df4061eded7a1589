"""`ramet eval` from end to end, with a random tiny model: numbers are what they are, the file must be right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet.config.compose import compose
from ramet.errors import ConfigErrors
from ramet.evaluate.job import run
from ramet.models.tiny import make_tiny_model
from ramet.plugins import load_plugins

needs_benchmarks = pytest.mark.skipif(
    "arithmetic" not in load_plugins().registries.benchmarks, reason="the plugin ramet-benchmarks is not installed"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", hidden=32, layers=2, intermediate=64)


def overrides(model: Path, root: Path, *more: str) -> list[str]:
    return [
        f"model.path={model}",
        f"run.root={root}",
        "run.name=measured",
        "benchmarks=[arithmetic]",
        "benchmarks.arithmetic.limit=5",
        "evaluate.k=3",
        "rollout_step.system_prompt=never",
        "rollout.max_response_tokens=8",
        "data.max_prompt_tokens=32",
        "engine.params.slots=8",
        "rollout.max_concurrent=8",
        *more,
    ]


@needs_benchmarks
def test_every_rollout_stands_in_the_results_with_its_prompt(model: Path, tmp_path: Path) -> None:
    run(compose(overrides(model, tmp_path), job="eval"))
    body = json.loads((tmp_path / "measured/results.json").read_text())
    [result] = body["results"]
    assert len(result["tasks"]) == 5
    assert all(len(task["rollouts"]) == 3 and task["prompt"].startswith("<|user|>") for task in result["tasks"])
    assert result["judged"] == "15 of 15 judged"
    assert {plugin["name"] for plugin in body["plugins"]} >= {"core", "benchmarks"}
    assert body["versions"]["torch"]


@needs_benchmarks
def test_a_stopped_evaluation_measures_only_what_is_left(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramet.evaluate.results import PartialResults

    kept, add = [], PartialResults.add

    def failing(self: PartialResults, result: object) -> None:
        if len(kept) == 2:
            raise KeyboardInterrupt
        kept.append(result)
        add(self, result)  # type: ignore[arg-type]

    monkeypatch.setattr(PartialResults, "add", failing)
    with pytest.raises(KeyboardInterrupt):
        run(compose(overrides(model, tmp_path), job="eval"))
    monkeypatch.setattr(PartialResults, "add", add)
    partial = tmp_path / "measured/results.json.partial.jsonl"
    before = partial.read_text().splitlines()
    assert len(before) == 3  # the header and two tasks
    run(compose(overrides(model, tmp_path), job="eval"))
    body = json.loads((tmp_path / "measured/results.json").read_text())
    assert len({task["task"] for task in body["results"][0]["tasks"]}) == 5
    assert not partial.exists()


@needs_benchmarks
def test_a_finished_evaluation_is_left_alone(model: Path, tmp_path: Path) -> None:
    run(compose(overrides(model, tmp_path), job="eval"))
    file = tmp_path / "measured/results.json"
    before = file.stat().st_mtime_ns
    run(compose(overrides(model, tmp_path), job="eval"))
    assert file.stat().st_mtime_ns == before


def test_everything_wrong_is_reported_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors) as caught:
        run(compose([f"model.path={tmp_path / 'absent'}", "evaluate.k=0"], job="eval"))
    text = str(caught.value)
    assert "absent" in text and "evaluate.k" in text and "benchmarks: none chosen" in text
