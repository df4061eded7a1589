"""`files`: a benchmark of one's own without code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramet import ConfigError
from ramet.config.compose import compose
from ramet.config.schema import BenchmarkConfig
from ramet.evaluate.evaluation import load_benchmark
from ramet.plugins import load_plugins
from ramet.testing.benchmark import check_benchmark
from ramet_benchmarks.config import FilesConfig, JudgeConfig
from ramet_benchmarks.files import FilesBenchmark

needs_rewards = pytest.mark.skipif(
    "qa_em" not in load_plugins().registries.rewards, reason="ramet-benchmarks[scorers] is not installed"
)
Scores = Callable[..., list[dict[str, float]]]
ROWS = [{"q": "2+2?", "gold": 4, "name": "sum"}, {"q": "Capital of Italy?", "gold": ["Rome", "Roma"], "name": "city"}]


def written(folder: Path, rows: list[Any], name: str = "own.jsonl") -> str:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def made(*paths: str, **options: Any) -> FilesBenchmark:
    chosen: dict[str, Any] = {"question": "q", "answer": "gold", "metrics": {"em": "qa_em", "f1": "qa_f1"}}
    return FilesBenchmark(FilesConfig(paths=list(paths), **chosen | options))


@needs_rewards
def test_files_are_one_split_with_the_metrics_that_were_named(tmp_path: Path, scores: Scores) -> None:
    other = written(tmp_path, [{"q": "3+3?", "gold": 6, "choices": ["5", "6"]}], "other.jsonl")
    benchmark = made(written(tmp_path, ROWS), other, prompt="Q: {question}", tools=["python"], limits={"python": 2})
    assert check_benchmark(benchmark) == {"test": 3}
    info = benchmark.info
    assert (info.metrics, info.prompt, info.tools, info.limits) == (
        ("em", "f1"),
        "Q: {question}",
        ("python",),
        {"python": 2},
    )
    tasks = list(benchmark.load("test", None))
    assert [task.id for task in tasks] == ["own/0", "own/1", "other/0"]
    assert [task.metadata for task in tasks] == [{"name": "sum"}, {"name": "city"}, {"choices": ["5", "6"]}]
    assert scores(benchmark, (tasks[1], "roma"), (tasks[1], "Rome, Italy")) == [
        {"em": 1.0, "f1": 1.0}, {"em": 0.0, "f1": pytest.approx(2 / 3)},
    ]  # fmt: skip


@needs_rewards
def test_ids_come_from_a_column_and_rewards_have_options(tmp_path: Path, scores: Scores) -> None:
    benchmark = made(
        written(tmp_path, ROWS), id="name", metrics={"found": "qa_em"}, options={"found": {"within": True}}
    )
    tasks = list(benchmark.load("test", None))
    assert [task.id for task in tasks] == ["own/sum", "own/city"]
    assert scores(benchmark, (tasks[1], "Rome, Italy")) == [{"found": 1.0}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"metrics": {}}, "metrics is empty; name at least one with its reward, as in {em: qa_em}"),
        (
            {"metrics": {"judge": "qa_em"}},
            "metrics has 'judge', which is the metric of judge.ask; choose another name",
        ),
        (
            {"metrics": {"mine": "llm_judge"}},
            "metrics.mine is llm_judge, which asks a server: set judge.ask=true and judge.server, which makes the "
            "metric 'judge' of it; then what it cannot judge is counted, and a replay asks no judge",
        ),
        ({"options": {"em2": {}}}, "options has 'em2', which is not a metric; metrics: em, f1"),
        ({"limits": {"python": -1}}, "limits.python=-1: "),
        ({"prompt": "Q:"}, "prompt is 'Q:'; allowed: a text with {question}"),
        ({"paths": []}, "paths is empty; name at least one file of JSON lines"),
        (
            {"paths": ["a/own.jsonl", "b/own.jsonl"]},
            "paths has 2 files named 'own'; ids begin with this name, so it must be another in each file",
        ),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], said: str) -> None:
    paths = options.pop("paths", ["own.jsonl"])
    with pytest.raises(ConfigError) as caught:
        made(*paths, **options)
    assert str(caught.value).startswith(f"benchmarks.files.params.{said}")


def test_a_reward_that_there_is_not_is_named_with_its_metric() -> None:
    with pytest.raises(ConfigError) as caught:
        made("own.jsonl", metrics={"em": "no_such"})
    assert str(caught.value).startswith("benchmarks.files.params.metrics.em: rewards: no reward named 'no_such'.")


@needs_rewards
def test_an_instance_and_its_judge_are_named_by_their_keys() -> None:
    entry = load_plugins().get("benchmarks", "files")
    with pytest.raises(ConfigError, match=r"^benchmarks\.mine\.params\.metrics is empty"):
        entry.build(FilesConfig(paths=["own.jsonl"]), key="benchmarks.mine")
    built = entry.build(FilesConfig(paths=["own.jsonl"], judge=JudgeConfig(ask=True)), key="benchmarks.mine")
    assert built.metrics.rewards["judge"].client.name == "benchmarks.mine.params.judge.server"


@needs_rewards
def test_a_column_that_no_row_has_is_told_once_for_each_file(tmp_path: Path) -> None:
    paths = [written(tmp_path, ROWS), written(tmp_path, [{"q": "3+3?", "solution": 6}], "other.jsonl")]
    with pytest.raises(ConfigError) as caught:
        list(made(*paths, answer="solution", id="key").load("test", None))
    assert str(caught.value).splitlines() == [
        f"benchmarks.files.params.answer is 'solution', which no row of {paths[0]} has; found q, gold, name",
        f"benchmarks.files.params.id is 'key', which no row of {paths[0]} has; found q, gold, name",
        f"benchmarks.files.params.id is 'key', which no row of {paths[1]} has; found q, solution",
    ]


@needs_rewards
def test_a_missing_value_names_file_and_row(tmp_path: Path) -> None:
    path = written(tmp_path, [*ROWS, {"q": "?", "name": "none"}])
    with pytest.raises(ConfigError) as caught:
        list(made(path).load("test", None))
    assert str(caught.value) == f"{path}, row 3: no key 'gold' (or null); found q, name"


@needs_rewards
def test_files_that_are_not_there_are_told_with_key_and_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_benchmark("mine", made("a.jsonl", "b.jsonl"), BenchmarkConfig(use="files"))
    assert str(caught.value).splitlines() == [
        f"benchmarks.mine.params.paths: no file '{name}.jsonl' (working directory {tmp_path})" for name in "ab"
    ]


@needs_rewards
def test_a_reward_that_is_no_metric_is_told_with_the_way_out(tmp_path: Path, scores: Scores) -> None:
    benchmark = made(written(tmp_path, ROWS), metrics={"cost": "tool_cost"})
    task = next(benchmark.load("test", 1))

    async def below(_: object) -> dict[str, float]:
        return {"cost": -1.0}

    benchmark.metrics.of = below  # type: ignore[assignment]
    with pytest.raises(ConfigError) as caught:
        scores(benchmark, (task, "4"))
    assert str(caught.value) == (
        "params.metrics.cost is the reward 'tool_cost', which gave -1 for task 'own/0'; a metric is a number in [0, 1]"
        ": choose the reward's options with params.options={cost: {…}}, or another reward"
    )


@needs_rewards
def test_all_bad_rows_are_told_at_once_also_those_that_no_metric_can_judge(tmp_path: Path) -> None:
    answers = ["1", r"\boxed{}", "2", None, r"\boxed{}"]
    path = written(tmp_path, [{"question": "?", "answer": answer} for answer in answers])
    found = []
    with pytest.raises(ConfigError) as caught:
        found += made(path, question="question", answer="answer", metrics={"right": "math"}).load("test", None)
    no_gold = r"metric right: no gold answer, or one with nothing in its box; got ['\\boxed{}']"
    second, fourth, fifth = str(caught.value).splitlines()
    assert (second, fifth) == (f"{path}, row 2: {no_gold}", f"{path}, row 5: {no_gold}")
    assert fourth.startswith(f"{path}, row 4: no key 'answer' ")
    many = written(tmp_path, [{"question": "?", "answer": r"\boxed{}"}] * 30, "many.jsonl")
    with pytest.raises(ConfigError) as caught:
        list(made(many, question="question", answer="answer", metrics={"right": "math"}).load("test", 3))
    assert str(caught.value).splitlines()[19:] == [f"{many}, row 20: {no_gold}", "what follows was not read"]


@needs_rewards
def test_an_id_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, [ROWS[0], ROWS[0]])
    with pytest.raises(ConfigError, match=r", row 2: the id 'own/sum' .*own\.jsonl, row 1; "):
        list(made(path, id="name").load("test", None))


@needs_rewards
@pytest.mark.parametrize("metric", ["own", "own.pass"])
def test_a_recipe_that_names_code_of_a_metric_is_refused(
    metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the metric is called: names may hold dots."""
    recipe = tmp_path / "hydra_configs/experiment/mine.yaml"
    recipe.parent.mkdir(parents=True)
    params = {"metrics": {metric: "custom"}, "options": {metric: {"path": "evil.py"}}}
    text = json.dumps({"defaults": [{"override /benchmarks": ["files"]}], "benchmarks": {"files": {"params": params}}})
    recipe.write_text(f"# @package _global_\n{text}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"experiment/mine\.yaml: .* run by .*evil\.py"):
        compose(["model.path=m", "experiment=mine"], job="eval")
