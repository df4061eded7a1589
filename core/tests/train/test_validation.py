"""Validation while a whole run trains: how it samples, on whose tasks, and which checkpoint it keeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from ramet.cli.app import main
from ramet.config.compose import compose
from ramet.errors import ConfigErrors
from ramet.evaluate.evaluation import run as evaluate
from ramet.evaluate.files import read_results, read_rollouts
from ramet.models.tiny import make_tiny_model
from ramet.plugins import load_plugins
from ramet.policy.checkpoint.store import read_score
from ramet.rollout.record import GroupRecord, read_records
from ramet.train.training import run
from ramet.types import BenchmarkInfo, Rollout, Task, user_prompt

pytestmark = pytest.mark.skipif(
    "format" not in load_plugins().registries.rewards, reason="the plugin ramet-rewards is not installed"
)
needs_benchmarks = pytest.mark.skipif(
    "arithmetic" not in load_plugins().registries.benchmarks, reason="the plugin ramet-benchmarks is not installed"
)
Train = Callable[..., dict[int, dict[str, float]]]
KEEP_BEST = ["train.eval_every=1", "train.keep_best=valid/by_step/accuracy", "train.keep_checkpoints=1"]


class ByStep:
    """Scores by the step whose weights sampled the rollout; None: not judged."""

    info = BenchmarkInfo(
        description="", splits=("train", "test"), metrics=("accuracy",), source="written here", licence="MIT",
        judged=True,
    )  # fmt: skip
    values: ClassVar[dict[int, float | None]] = {}
    seen: ClassVar[list[str]] = []

    def load(self, split: str, limit: int | None) -> Iterable[Task]:
        return [Task(id=f"{split}/{i}", prompt=user_prompt(f"{i}?"), data_source="by_step") for i in range(2)]

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        self.seen.append(f"{rollout.task.id}:{rollout.id}")
        [version] = {segment.policy_version for segment in rollout.segments if segment.is_sampled}
        return {"accuracy": self.values.get(int(version or 0), 0.0)}


@pytest.fixture(autouse=True)
def benchmark(register: Callable[..., None]) -> None:
    register("benchmarks", "by_step", ByStep)
    register("benchmarks", "by_text", ByText)
    register("rewards", "varied", Varied)
    ByStep.values.clear()
    ByStep.seen.clear()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", hidden=32, layers=1, heads=2, intermediate=64)


@pytest.fixture
def overrides(model: Path, tmp_path: Path) -> Callable[..., list[str]]:
    def given(*more: str, sources: str = "null") -> list[str]:
        data = tmp_path / "train.jsonl"
        rows = [{"prompt": f"{i}+1?", "answer": str(i + 1), "data_source": "sums"} for i in range(6)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        train = [] if any(text.startswith("data.train=") for text in more) else [f"data.train=[{data}]"]
        return [
            f"model.path={model}", "model.device=cpu", f"run.root={tmp_path}", "run.name=run",
            "run.deterministic=true", "data.max_prompt_tokens=32", "rollout_step.system_prompt=never",
            "rollout.max_response_tokens=4", "rollout.group_size=2", "rollout.max_concurrent=8",
            "engine.params.slots=8", "tools=[]", "rewards=[format]", f"rewards.format.sources={sources}",
            "train.tasks_per_step=1", "trackers=[jsonl]", *train, *more,
        ]  # fmt: skip

    return given


@pytest.fixture
def train(overrides: Callable[..., list[str]], tmp_path: Path) -> Train:
    """Trains with these overrides; the metrics of each step."""

    def start(*more: str, sources: str = "null") -> dict[int, dict[str, float]]:
        run(compose(overrides(*more, sources=sources), job="train"))
        found: dict[int, dict[str, float]] = {}
        for line in map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines()):
            found.setdefault(line["step"], {}).update(line)
        return found

    return start


@pytest.fixture
def problems(overrides: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def given(*more: str, sources: str = "null") -> list[str]:
        with pytest.raises(ConfigErrors) as caught:
            run(compose(overrides(*more, sources=sources), job="train"))
        return caught.value.problems

    return given


class ByText:
    """Scores that depend on every sampled token, with a protocol of its own."""

    info = BenchmarkInfo(
        description="", splits=("test",), metrics=("accuracy",), source="written here", licence="MIT",
        prompt="Work out {question}", system_prompt="Be brief.", limits={"max_tool_calls": 1},
        sampling={"temperature": 0.9, "top_p": 0.8},
    )  # fmt: skip

    def load(self, split: str, limit: int | None) -> Iterable[Task]:
        sources = ("even", "odd")
        return [Task(id=f"{split}/{i}", prompt=user_prompt(f"{i}?"), data_source=sources[i % 2]) for i in range(6)]

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        ids = [token for segment in rollout.segments if segment.is_sampled for token in segment.token_ids]
        return {"accuracy": sum(i * token for i, token in enumerate(ids, start=1)) % 101 / 100}


class Varied:
    """Rewards that differ within every group, so that the weights change."""

    async def __call__(self, group: Sequence[Rollout]) -> list[float]:
        return [float(i) for i, _ in enumerate(group)]


def kept(tmp_path: Path) -> dict[str, float | None]:
    """The checkpoints and their scores."""
    found = sorted((tmp_path / "run/checkpoints").iterdir())
    return {folder.name: None if (score := read_score(folder)) is None else score.value for folder in found}


def test_a_benchmark_by_name_is_scored_by_itself_and_by_rewards_that_apply(train: Train) -> None:
    ByStep.values[1] = 0.75
    metrics = train("data.valid=[benchmark:by_step/test]", "train.eval_every=1", "train.steps=1")
    assert metrics[1]["valid/by_step/accuracy"] == 0.75
    assert metrics[1]["valid/reward"] == metrics[1]["valid/reward/by_step"]
    assert metrics[1]["valid/masked_share"] == 0
    assert sorted(ByStep.seen) == ["test/0:0", "test/1:0"]


def test_a_benchmark_that_no_reward_applies_to_is_validated_all_the_same(train: Train) -> None:
    ByStep.values[1] = None
    valid = ["data.valid=[benchmark:by_step/test]", "train.eval_every=1", "train.steps=2"]
    metrics = train(*valid, sources="[sums]")
    assert (metrics[1]["valid/masked_share"], metrics[2]["valid/masked_share"]) == (1, 0)
    assert "valid/by_step/accuracy" not in metrics[1] and metrics[2]["valid/by_step/accuracy"] == 0
    assert not any(name.startswith("valid/reward") for found in metrics.values() for name in found)


def test_a_validation_samples_as_it_is_told(train: Train, problems: Callable[..., list[str]]) -> None:
    valid = ["data.valid=[benchmark:by_step/test]", "train.eval_every=1", "train.steps=1", "train.eval_k=3"]
    assert problems(*valid, "train.eval_sampling.temperature=0") == [
        "train.eval_k=3: needs train.eval_sampling.temperature over 0, since all rollouts of a task would be the same"
    ]
    ByStep.values[1] = 1.0
    metrics = train(*valid, "train.eval_sampling.temperature=0.7")
    assert sorted(ByStep.seen) == [f"test/{task}:{rollout}" for task in (0, 1) for rollout in (0, 1, 2)]
    assert metrics[1]["valid/by_step/accuracy"] == metrics[1]["valid/by_step/accuracy/pass@3"] == 1


def test_tasks_of_files_are_greedy_unless_told_otherwise(
    overrides: Callable[..., list[str]], problems: Callable[..., list[str]]
) -> None:
    (data,) = [text.removeprefix("data.train=") for text in overrides() if text.startswith("data.train=")]
    [problem] = problems(f"data.valid={data}", "train.eval_every=1", "train.eval_k=3")
    assert problem.startswith("train.eval_k=3: needs train.eval_sampling.temperature ") and data.strip("[]") in problem
    chosen = ["benchmarks=[by_text]", "benchmarks.by_text.tools=[serach]"]
    [problem] = problems(*chosen, "data.valid=[benchmark:by_text/test]")
    assert problem.startswith("benchmarks.by_text.tools: 'serach' ")


def test_a_validation_gives_the_numbers_of_an_evaluation_with_the_same_weights(
    train: Train, overrides: Callable[..., list[str]], tmp_path: Path
) -> None:
    """Scores, token ids and all: prompts, limits, sampling and seeds are those of `ramet eval`."""
    chosen = ["benchmarks=[by_text]", "benchmarks.by_text.limit=4", "evaluate.sampling.temperature=1.1"]
    data = ["data.valid=[benchmark:by_text/test]", "train.eval_every=1", "train.eval_k=3", "train.steps=2"]
    metrics = train(*data, *chosen, "policy.lr=0.01", "rewards.other.use=varied")
    same = [text for text in overrides(*chosen) if not text.startswith(("rewards", "train.", "data.train"))]
    same = [text for text in same if text not in ("run.name=run", "rollout.group_size=2")]
    evaluated = evaluate(
        compose([*same, f"model.path={tmp_path / 'run/model'}", "run.name=measured", "evaluate.k=3"], job="eval")
    )
    assert evaluated.scores == {"by_text": {"accuracy": metrics[2]["valid/by_text/accuracy"]}}
    body = read_results(evaluated.file)
    (result,) = body["results"]
    assert metrics[2]["valid/by_text/accuracy/pass@3"] == result["metrics"][0]["passes"][-1]["estimate"]["mean"]
    inside = list(read_records(tmp_path / "run/rollouts/valid_000002.jsonl.gz"))
    outside = [record for _, record in read_rollouts(evaluated.file, body)]
    assert [record.step for record in inside] == [2] * 4 and len(outside) == 4
    assert [_played(record) for record in inside] == [_played(record) for record in outside]
    assert len({ids for record in inside for ids, _ in _played(record)}) > 6  # they are samples
    assert inside[0].group.task.prompt[0].content == "Be brief."
    assert metrics[1]["valid/by_text/accuracy"] != metrics[2]["valid/by_text/accuracy"]


def _played(record: GroupRecord) -> list[tuple[tuple[int, ...], float | None]]:
    """Token ids and main score of every rollout."""
    return [
        (tuple(token for segment in one.rollout.segments for token in segment.token_ids), one.parts["accuracy"])
        for one in record.group.rollouts
    ]


def test_the_best_checkpoint_is_kept_beside_the_newest_and_the_earlier_of_equal_ones(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ByStep.values.update({1: 0.1, 2: 0.9, 3: 0.9, 4: None, 5: 0.3})
    train("data.valid=[benchmark:by_step/test]", "train.steps=5", "train.save_every=100", *KEEP_BEST)
    assert kept(tmp_path) == {"step_000002": 0.9, "step_000005": 0.3}
    capsys.readouterr()
    assert main(["checkpoints", str(tmp_path / "run")]) == 0
    [best, newest] = capsys.readouterr().out.splitlines()[1:3]
    assert best.endswith("  verified, best by valid/by_step/accuracy: 0.9")
    assert newest.endswith("  verified, taken by a resume, valid/by_step/accuracy: 0.3")
    assert main(["checkpoints", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(entry["best"], entry["score"]["value"]) for entry in found] == [(True, 0.9), (False, 0.3)]


@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_a_resumed_run_keeps_the_same_checkpoints(train: Train, tmp_path: Path, first: int) -> None:
    ByStep.values.update({1: 0.5, 2: 0.9, 3: 0.2, 4: 0.9, 5: 0.3})
    options = ["data.valid=[benchmark:by_step/test]", "train.save_every=100", *KEEP_BEST]
    train(f"train.steps={first}", *options)
    train("train.steps=5", *options)
    assert kept(tmp_path) == {"step_000002": 0.9, "step_000005": 0.3}


def test_a_checkpoint_that_was_not_validated_is_when_the_run_goes_on_from_it(train: Train, tmp_path: Path) -> None:
    ByStep.values.update({1: 0.5, 2: 0.9, 3: 0.2})
    options = ["data.valid=[benchmark:by_step/test]", "train.save_every=100"]
    train("train.steps=2", *options)
    assert kept(tmp_path) == {"step_000002": None}
    metrics = train("train.steps=3", *options, *KEEP_BEST)
    assert metrics[2]["valid/by_step/accuracy"] == 0.9
    assert kept(tmp_path) == {"step_000002": 0.9, "step_000003": 0.2}


def test_a_validation_counts_what_training_leaves_out(train: Train) -> None:
    """Every rollout of this model is cut at four tokens."""
    metrics = train(
        "data.valid=[benchmark:by_step/test]", "train.eval_every=1", "train.steps=1",
        "rewards.format.params.leave_out_truncated=true",
    )  # fmt: skip
    assert metrics[1]["rollout/left_out_share"] > 0
    assert (metrics[1]["valid/reward"], metrics[1]["valid/masked_share"]) == (0.0, 0.0)


def test_a_validation_of_which_much_was_lost_makes_nothing_the_best(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is left would be a biased subset: here the only rollout that was judged is right."""

    async def loses(self: ByStep, rollout: Rollout) -> Mapping[str, float | None]:
        [version] = {segment.policy_version for segment in rollout.segments if segment.is_sampled}
        return {"accuracy": 0.5 if version == 1 else None if rollout.task.id == "test/0" else 1.0}

    monkeypatch.setattr(ByStep, "score", loses)
    train("data.valid=[benchmark:by_step/test]", "train.steps=3", "train.save_every=100", *KEEP_BEST)
    assert kept(tmp_path) == {"step_000001": 0.5, "step_000003": None}
    assert [record.getMessage() for record in caplog.records if "cannot be the best" in record.getMessage()] == [
        f"step {step}: valid/masked_share is 0.5 (limit rollout.max_masked_share=0.2), so its checkpoint cannot be the "
        "best (train.keep_best): the rest would be a biased subset"
        for step in (2, 3)
    ]


def test_what_the_best_is_chosen_by_does_not_change_on_the_way(
    train: Train, problems: Callable[..., list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    options = ["data.valid=[benchmark:by_step/test]", *KEEP_BEST]
    train("train.steps=1", *options)
    assert "chooses the checkpoint on benchmark:by_step/test" in caplog.text  # a warning before the start
    [problem] = problems("train.steps=2", *options, "train.eval_sampling.temperature=0.5")
    assert problem.startswith("train.eval_sampling.temperature was (absent), is 0.5; ")


def test_the_metric_must_be_one_of_the_validation(problems: Callable[..., list[str]]) -> None:
    valid = "data.valid=[benchmark:by_step/test]"
    assert problems(valid, "train.eval_every=1", "train.keep_best=valid/acc") == [
        "train.keep_best=valid/acc: no metric of the validation; allowed: valid/reward, valid/reward/by_step, "
        "valid/by_step/accuracy"
    ]
    assert problems(valid, "train.keep_best=valid/reward") == [
        "train.keep_best=valid/reward: needs train.eval_every over 0, which says when it is measured"
    ]


def test_unknown_benchmarks_and_splits_and_options_without_effect_are_errors(
    problems: Callable[..., list[str]],
) -> None:
    installed = ", ".join(load_plugins().registries.benchmarks.names)
    assert problems("data.train=[benchmark:by_step/dev,benchmark:by_stepp/train,benchmark:by_step]") == [
        "benchmark:by_step/dev: benchmark 'by_step' has no split 'dev'; allowed: train, test",
        "benchmark:by_stepp/train: benchmarks: no benchmark named 'by_stepp'. Did you mean 'by_step'? Installed: "
        f"{installed}.",
        "benchmark:by_step: write benchmark:NAME/SPLIT, as in benchmark:gsm8k/train",
    ]
    assert problems("benchmarks=[by_step]") == [
        "benchmarks: `ramet train` reads the benchmarks that data.train or data.valid name, and by_step is not "
        "one of them; name it, as in data.valid=[benchmark:by_step/test], or leave the key out"
    ]
    named = ["benchmarks=[by_step]", "data.train=[benchmark:by_step/train]"]
    assert [problem.split()[0] for problem in problems(*named, "evaluate.k=3", "run.out=x")] == [
        "evaluate.k:",
        "run.out:",
    ]
    [problem] = problems(*named, "benchmarks.by_step.limit=3")
    assert problem.startswith("benchmarks.by_step.limit: ") and "data.limits.train or data.limits.valid" in problem


@needs_benchmarks
def test_a_run_trains_on_a_benchmarks_tasks_and_knows_them_again(
    train: Train, problems: Callable[..., list[str]], tmp_path: Path
) -> None:
    data = ["data.train=[benchmark:arithmetic/train]", "data.limits.train=5", "benchmarks=[arithmetic]"]
    train(*data, "benchmarks.arithmetic.params.seed=3", "train.steps=1")
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["data"]["train"]["files"] == ["benchmark:arithmetic/train"]
    assert manifest["data"]["train"]["tasks"] == 5
    [problem] = problems(*data, "benchmarks.arithmetic.params.seed=4", "train.steps=2")
    assert "training data" in problem and "5 tasks of benchmark:arithmetic/train " in problem
    assert train(*data, "benchmarks.arithmetic.params.seed=3", "train.steps=2").keys() == {1, 2}
