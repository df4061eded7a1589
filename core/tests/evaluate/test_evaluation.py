"""`ramet eval` from end to end, with a random tiny model: numbers are what they are, the file must be right."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ramet.cli.app import main
from ramet.cluster.local import LocalRollouts
from ramet.config.compose import compose
from ramet.errors import ConfigError, ConfigErrors, InfraError, PluginError
from ramet.evaluate.evaluation import run
from ramet.evaluate.files import read_results
from ramet.models.tiny import make_tiny_model
from ramet.plugins import load_plugins, origin
from ramet.rollout.plan import RolloutRequest
from ramet.runs.selection import Selection
from ramet.types import Group, Rollout

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
    body = read_results(tmp_path / "measured/results.json")
    [result] = body["results"]
    assert len(result["tasks"]) == 5
    assert all(len(task["rollouts"]) == 3 and task["prompt"].startswith("<|user|>") for task in result["tasks"])
    assert result["judged"] == "15 of 15 judged"
    assert {plugin["name"] for plugin in body["plugins"]} >= {"core", "benchmarks"}
    assert body["versions"]["torch"]


@needs_benchmarks
def test_a_model_that_was_chosen_on_these_tasks_says_so_in_its_results(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = Path(shutil.copytree(model, tmp_path / "chosen"))
    metric, data = "valid/arithmetic/accuracy", ("benchmark:arithmetic/test",)
    Selection(step=4, metric=metric, value=0.5, data=data).write(chosen)
    for name, folder in (("base", model), ("best", chosen)):
        run(compose(overrides(folder, tmp_path, f"run.name={name}", "evaluate.k=1"), job="eval"))
    settings = read_results(tmp_path / "best/results.json")["settings"]
    assert settings["selection"] == {
        "step": 4, "metric": metric, "value": 0.5, "data": [*data], "benchmarks": ["arithmetic"],
    }  # fmt: skip
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "best"), "--format", "markdown"]) == 0
    assert f"arithmetic: {metric} chose this checkpoint (step 4) on these tasks" in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "base"), str(tmp_path / "best"), "--format", "markdown"]) == 0
    assert f"| arithmetic: model chosen on its tasks by | (absent) | {metric} |" in capsys.readouterr().out


@needs_benchmarks
def test_a_stopped_evaluation_measures_only_what_is_left(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramet.evaluate.partial import PartialResults

    kept, add = [], PartialResults.add

    def failing(self: PartialResults, result: object, record: object) -> None:
        if len(kept) == 2:
            raise KeyboardInterrupt
        kept.append(result)
        add(self, result, record)  # type: ignore[arg-type]

    monkeypatch.setattr(PartialResults, "add", failing)
    with pytest.raises(KeyboardInterrupt):
        run(compose(overrides(model, tmp_path), job="eval"))
    monkeypatch.setattr(PartialResults, "add", add)
    partial = tmp_path / "measured/results.json.partial.jsonl"
    before = partial.read_text().splitlines()
    assert len(before) == 3  # the header and two tasks
    run(compose(overrides(model, tmp_path), job="eval"))
    body = read_results(tmp_path / "measured/results.json")
    assert len({task["task"] for task in body["results"][0]["tasks"]}) == 5
    assert not partial.exists()


@needs_benchmarks
def test_a_finished_evaluation_is_left_alone(model: Path, tmp_path: Path) -> None:
    run(compose(overrides(model, tmp_path), job="eval"))
    file = tmp_path / "measured/results.json"
    before = file.stat().st_mtime_ns
    run(compose(overrides(model, tmp_path), job="eval"))
    assert file.stat().st_mtime_ns == before


@needs_benchmarks
def test_a_larger_k_says_what_is_there_and_keeps_it(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def rollouts() -> dict[str, list[Any]]:
        (result,) = read_results(tmp_path / "measured/results.json")["results"]
        return {task["task"]: task["rollouts"] for task in result["tasks"]}

    few = ("benchmarks.arithmetic.limit=2", "evaluate.k=1")
    run(compose(overrides(model, tmp_path, *few), job="eval"))
    before = rollouts()
    assert "rollouts are there" not in caplog.text
    caplog.set_level("INFO", "ramet")
    run(compose(overrides(model, tmp_path, *few, "evaluate.k=3"), job="eval"))
    partial = tmp_path / "measured/results.json.partial.jsonl"
    said = [line for line in caplog.messages if "rollouts are there" in line]
    assert said == [f"{partial}: 2 of 6 rollouts are there, 4 are run, 0 are judged again"]
    assert {task: found[:1] for task, found in rollouts().items()} == before
    assert [len(found) for found in rollouts().values()] == [3, 3]


@dataclass
class Played:
    """What was asked of the rollouts, run by run: the tasks' ids and the numbers of their rollouts."""

    asked: list[tuple[set[str], tuple[int, ...] | None]] = field(default_factory=list)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    played, run = Played(), LocalRollouts.run

    async def noting(self: LocalRollouts, request: RolloutRequest, **more: Any) -> list[Group]:
        played.asked.append(({task.id for task in request.tasks}, request.plan.roots))
        return await run(self, request, **more)

    monkeypatch.setattr(LocalRollouts, "run", noting)
    return played


def fail_to_judge(monkeypatch: pytest.MonkeyPatch, n: int) -> list[str]:
    """The benchmark cannot judge rollout 1 of n tasks; returns the ids of those, filled as they come."""
    cls = type(load_plugins().get("benchmarks", "arithmetic").build(None))
    score, failed = cls.score, list[str]()

    async def failing(self: Any, rollout: Rollout) -> Mapping[str, float | None]:
        if rollout.id == "1" and len(failed) < n:
            failed.append(rollout.task.id)
            raise ConnectionError("the judge is down")
        return await score(self, rollout)

    monkeypatch.setattr(cls, "score", failing)
    return failed


def results_of(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_results(root / "measured/results.json")
    return found


@needs_benchmarks
def test_the_deadline_of_a_step_does_not_hold_for_an_evaluation(model: Path, tmp_path: Path) -> None:
    preset = tmp_path / "presets/experiment/short.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("# @package _global_\nrollout:\n  step_deadline_s: 1.0e-6\n")
    chosen = overrides(model, tmp_path, "experiment=short")
    run(compose(chosen, job="eval", config_dir=tmp_path / "presets"))
    assert results_of(tmp_path)["results"][0]["judged"] == "15 of 15 judged"


@needs_benchmarks
def test_what_was_not_judged_is_judged_again_and_nothing_is_played(
    model: Path, tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    partial = tmp_path / "measured/results.json.partial.jsonl"
    with monkeypatch.context() as patch:
        failed = fail_to_judge(patch, 2)
        with pytest.raises(InfraError) as caught:
            run(compose(overrides(model, tmp_path), job="eval"))
    said = str(caught.value)
    assert said.startswith(
        "benchmark arithmetic: 2 of 15 rollouts were masked or not judged (limit rollout.max_masked_share=0.05); most "
        "often ConnectionError('the judge is down') ("
    )
    raised_at, _, rest = said.rpartition("). No results are written")
    assert re.search(r"test_evaluation\.py:\d+$", raised_at)
    assert rest == (
        ", since those left would be a biased subset. What is judged is kept in "
        f"{partial}: remove the cause and start the same command again, which runs only what is missing"
    )
    assert f"resume with: ramet eval model.path={model} " in caplog.text
    assert not (tmp_path / "measured/results.json").exists()
    before = {task["task"]: task for task in map(json.loads, partial.read_text().splitlines()[1:])}
    played.asked.clear()
    run(compose(overrides(model, tmp_path), job="eval"))
    assert played.asked == []
    [result] = results_of(tmp_path)["results"]
    assert result["judged"] == "15 of 15 judged"
    for task in result["tasks"]:
        earlier = before[task["task"]]["rollouts"]
        assert [rollout["id"] for rollout in task["rollouts"]] == ["0", "1", "2"]
        same = [now == then for now, then in zip(task["rollouts"], earlier, strict=True)]
        assert same == [True, task["task"] not in failed, True]


@needs_benchmarks
def test_a_few_missing_rollouts_are_within_the_limit_and_the_same_command_tries_them_again(
    model: Path, tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = overrides(model, tmp_path, "rollout.max_masked_share=0.1")
    with monkeypatch.context() as patch:
        failed = fail_to_judge(patch, 1)
        run(compose(chosen, job="eval"))
    assert results_of(tmp_path)["results"][0]["judged"] == "14 of 15 judged"
    played.asked.clear()
    run(compose(chosen, job="eval"))
    assert len(failed) == 1 and results_of(tmp_path)["results"][0]["judged"] == "15 of 15 judged"
    run(compose(chosen, job="eval"))
    assert played.asked == []


@needs_benchmarks
def test_a_longer_deadline_does_not_forbid_to_go_on_and_a_shorter_one_does(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", *overrides(model, tmp_path, "rollout.deadline_s=1e-6")]) == 2
    reported = capsys.readouterr().err
    assert re.search(r"error: benchmark arithmetic: 15 of 15 .* rollout\.deadline_s=1e-06 \(turn 0\)\. ", reported)
    with pytest.raises(ConfigErrors) as caught:
        run(compose(overrides(model, tmp_path, "rollout.deadline_s=1e-7"), job="eval"))
    assert str(caught.value).startswith("rollout.deadline_s was 1e-06, is 1e-07; ")
    more = ["rollout.deadline_s=60", "rollout.max_concurrent=16"]
    run(compose(overrides(model, tmp_path, *more), job="eval"))
    body = results_of(tmp_path)
    assert body["results"][0]["judged"] == "15 of 15 judged"
    assert body["settings"]["changes"] == [
        "rollout.deadline_s was 1e-06, is 60.0",
        "rollout.max_concurrent was 8, is 16",
    ]


@needs_benchmarks
def test_other_changes_need_permission_and_are_recorded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_to_judge(patch, 2)
        with pytest.raises(InfraError):
            run(compose(overrides(model, tmp_path), job="eval"))
    hotter = overrides(model, tmp_path, "evaluate.sampling.temperature=0.9")
    with pytest.raises(ConfigError) as caught:
        run(compose(hotter, job="eval"))
    assert str(caught.value) == (
        f"{tmp_path}/measured/results.json.partial.jsonl holds an unfinished evaluation that differs in: "
        "evaluate.sampling.temperature was (absent), is 0.9; undo that, remove the file or choose another run.out, or "
        "set run.allow_config_change=true"
    )
    run(compose([*hotter, "run.allow_config_change=true"], job="eval"))
    assert results_of(tmp_path)["settings"]["changes"] == [
        "run.allow_config_change was False, is True",
        "evaluate.sampling.temperature was (absent), is 0.9",
    ]


def test_everything_wrong_is_reported_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors) as caught:
        run(compose([f"model.path={tmp_path / 'absent'}", "evaluate.k=0"], job="eval"))
    text = str(caught.value)
    assert "absent" in text and "evaluate.k" in text and "benchmarks: none chosen" in text


@pytest.mark.parametrize(
    ("scores", "problem"),
    [
        (None, "score returned NoneType: return a mapping of metrics"),
        ({"other": 1.0}, "score gave ['other'], info.metrics names ['accuracy']"),
        ({"accuracy": 2.0}, "'accuracy' is 2.0: a metric is a number in [0, 1]"),
        ({"accuracy": None}, "'accuracy' is None (not judged), but info.judged is False"),
    ],
)
@needs_benchmarks
def test_a_benchmark_that_breaks_the_contract_stops_the_evaluation(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: Any, problem: str
) -> None:
    benchmark = load_plugins().get("benchmarks", "arithmetic").build()
    task = next(iter(benchmark.load("test", 1)))

    async def score(self: Any, rollout: Any) -> Any:
        return scores

    monkeypatch.setattr(type(benchmark), "score", score)
    with pytest.raises(PluginError) as caught:
        run(compose(overrides(model, tmp_path, "benchmarks.arithmetic.limit=1", "evaluate.k=1"), job="eval"))
    who = f"benchmark 'arithmetic' ({origin(benchmark)}), task {task.id!r}, rollout 0"
    line = f"core/tests/evaluate/test_evaluation.py:{score.__code__.co_firstlineno}"
    assert str(caught.value) == f"{who}: {problem} ({line})"


@needs_benchmarks
def test_a_benchmark_that_cannot_load_is_named_with_the_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = load_plugins().get("benchmarks", "arithmetic").build()

    def load(self: Any, split: str, limit: int | None) -> Any:
        raise KeyError("lost")

    monkeypatch.setattr(type(benchmark), "load", load)
    with pytest.raises(PluginError) as caught:
        run(compose(overrides(model, tmp_path), job="eval"))
    line = f"core/tests/evaluate/test_evaluation.py:{load.__code__.co_firstlineno + 1}"
    who = f"benchmark 'arithmetic' ({origin(benchmark)})"
    assert str(caught.value) == f"{who} raised KeyError in load: 'lost' ({line})"


@needs_benchmarks
def test_one_benchmark_may_be_measured_twice_with_settings_of_its_own(model: Path, tmp_path: Path) -> None:
    more = ["benchmarks.few.use=arithmetic", "benchmarks.few.limit=2"]
    run(compose(overrides(model, tmp_path, *more), job="eval"))
    body = read_results(tmp_path / "measured/results.json")
    assert {one["name"]: len(one["tasks"]) for one in body["results"]} == {"arithmetic": 5, "few": 2}


@needs_benchmarks
def test_a_replay_scores_everything_again_and_gives_the_same_numbers(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(compose(overrides(model, tmp_path), job="eval"))
    file = tmp_path / "measured/results.json"

    def unplayed(*given: object, **more: object) -> None:
        raise AssertionError("a replay needs no engine")

    monkeypatch.setattr(LocalRollouts, "open", unplayed)
    capsys.readouterr()
    assert main(["eval", "--replay", str(tmp_path / "measured")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{file}: 15 rollouts scored again, the same numbers"
    cls = type(load_plugins().get("benchmarks", "arithmetic").build(None))

    async def generous(self: Any, rollout: Rollout) -> Mapping[str, float | None]:
        return {"accuracy": 1.0}

    monkeypatch.setattr(cls, "score", generous)
    assert main(["eval", "--replay", str(file)]) != 0
    told = capsys.readouterr().err
    assert f"{file}: scored again, benchmark arithmetic: accuracy is 1.0, was 0.0, other scores of arithmetic/" in told
    assert "and 12 more" in told
    assert main(["eval", "--replay", str(file), "evaluate.k=2"]) == 1
