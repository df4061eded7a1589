"""Ramet from Python: the jobs as functions, also where an event loop runs already."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import ramet.api
from ramet import event_loop, per_rollout
from ramet.api import compose, evaluate, frame, metrics, results, rollouts, run, scores, segments, sft, train
from ramet.errors import ConfigError, ConfigErrors
from ramet.event_loop import run_async
from ramet.models.tiny import make_tiny_model
from ramet.plugins import load_plugins
from ramet.runs.stopped import StopListener, Stopped
from ramet.tracking.jsonl import read_metrics
from ramet.types import Rollout

needs_plugins = pytest.mark.skipif(
    "format" not in load_plugins().registries.rewards or "arithmetic" not in load_plugins().registries.benchmarks,
    reason="the plugin ramet-benchmarks is not installed",
)
ROWS = '{"prompt": "1+1?", "answer": "2"}\n{"prompt": "2+1?", "answer": "3"}\n'
TRACES = '{"messages": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "<answer>2</answer>"}]}\n'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", hidden=32, layers=2, heads=2, intermediate=64)


def keys(model: Path, root: Path, *more: str) -> list[str]:
    (root / "tasks.jsonl").write_text(ROWS)
    return [
        f"model.path={model}", "model.device=cpu", f"data.train=[{root / 'tasks.jsonl'}]", f"run.root={root}",
        "run.name=run", "data.max_prompt_tokens=32", "rollout_step.system_prompt=never", "rollout.group_size=2",
        "rollout.max_response_tokens=8", "rollout.max_concurrent=8", "engine.params.slots=8", "tools=[]",
        "rewards=[format]", "advantage=grpo", "train.steps=1", "train.tasks_per_step=2", "trackers=[]", *more,
    ]  # fmt: skip


@needs_plugins
def test_train_inside_a_running_event_loop_returns_the_run_its_model_and_its_last_metrics(
    model: Path, tmp_path: Path
) -> None:
    async def notebook() -> None:
        config = compose(keys(model, tmp_path))
        result = train(config)
        assert (result.run, result.model, result.steps) == (tmp_path / "run", tmp_path / "run/model", 1)
        assert (result.model / "config.json").is_file()
        logged = [entry for entry in read_metrics(tmp_path / "run/metrics.jsonl") if entry.step == 1]
        assert dict(result.metrics) == {name: value for entry in logged for name, value in entry.metrics.items()}
        assert "reward/mean" in result.metrics

    asyncio.run(notebook())


@needs_plugins
def test_sft_and_evaluate_return_what_they_left(model: Path, tmp_path: Path) -> None:
    (tmp_path / "traces.jsonl").write_text(TRACES)
    taught = sft(
        [f"model.path={model}", "model.device=cpu", f"sft.data=[{tmp_path / 'traces.jsonl'}]", "sft.epochs=1",
         f"run.root={tmp_path}", "run.name=sft", "tools=[]", "trackers=[]"]
    )  # fmt: skip
    assert (taught.run, taught.model, taught.steps) == (tmp_path / "sft", tmp_path / "sft/model", 1)
    assert taught.final_loss > 0
    measured = evaluate(
        [f"model.path={taught.model}", f"run.root={tmp_path}", "run.name=eval", "benchmarks=[arithmetic]",
         "benchmarks.arithmetic.limit=2", "evaluate.k=1", "rollout_step.system_prompt=never", "tools=[]",
         "rollout.max_response_tokens=8", "data.max_prompt_tokens=32", "engine.params.slots=8",
         "rollout.max_concurrent=8"]
    )  # fmt: skip
    assert measured.file == tmp_path / "eval/results.json"
    assert list(measured.scores) == ["arithmetic"]
    assert all(0 <= score <= 1 for score in measured.scores["arithmetic"].values() if score is not None)
    rows = {row["metric"]: row for row in scores(measured.run)}
    assert {metric: row["mean"] for metric, row in rows.items()} == measured.scores["arithmetic"]
    assert all(row["low"] <= row["mean"] <= row["high"] and row["judged"] == 2 for row in rows.values())
    answers = results(measured.file)
    assert [row["score/accuracy"] for row in answers] == [0.0, 0.0] and {row["rollout"] for row in answers} == {"0"}
    assert measured == evaluate(compose(_again(measured.run), job="eval")), (
        "a finished evaluation is read, not repeated"
    )


def _again(folder: Path) -> list[str]:
    return (folder / "overrides.txt").read_text().splitlines()


def test_mistakes_are_raised_all_at_once_and_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors) as raised:
        train([f"run.root={tmp_path}/runs", "train.steps=none", "rollout.top_p=2", "data.train=[gone.jsonl]"])
    assert len(raised.value.problems) >= 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compose("train.steps=1"), "keys must be a list of strings or a dict, got the string 'train.steps=1'; "
         "write ['train.steps=1']"),
        (lambda: compose({"train.steps": {1}}), "train.steps: a value of type set cannot be written down; allowed: "
         "text, number, bool, None, path, list or dict of these"),
        (lambda: next(rollouts("gone")), f"gone: no recorded rollouts of kind 'step' (working directory: "
         f"{Path.cwd()})"),
        (lambda: metrics("gone"), "gone: no run with metrics: there is no gone/metrics.jsonl"),
        (lambda: compose([], job="evaluate"), "no job 'evaluate'; allowed: train, sft, eval"),
        (lambda: sft(compose(["model.path=m"])), "this configuration was composed for the job 'train', not for 'sft'"),
    ],
)  # fmt: skip
def test_what_is_called_wrongly_is_told(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError) as raised:
        call()
    assert str(raised.value) == message


def test_a_dict_of_keys_is_what_the_same_words_are(tmp_path: Path) -> None:
    odd = tmp_path / "it's {a} [b], $c = d\\.jsonl"
    given = {"model.path": tmp_path, "data.train": [odd], "train.steps": 3, "policy.lr": 1e-6, "tools": ["mcp"],
             "model.trust_remote_code": False, "run.name": "3", "engine.params": {"slots": 5},
             "tools.mcp.params.command": ["a b", "-c"], "tools.mcp.params.url": None}  # fmt: skip
    config = compose(given).config
    assert (config.model.path, config.data.train, config.run.name) == (str(tmp_path), [str(odd)], "3")
    assert (config.train.steps, config.policy.lr, config.engine.params.slots) == (3, 1e-6, 5)
    assert config.tools["mcp"].params.command == ["a b", "-c"]


@needs_plugins
def test_tools_and_rewards_are_given_as_objects_and_the_record_is_read_as_objects(model: Path, tmp_path: Path) -> None:
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    async def sampled(group: Sequence[Rollout]) -> list[float]:
        return [float(rollout.n_response_tokens % 3) for rollout in group]

    chosen = dict(text.split("=", 1) for text in keys(model, tmp_path))
    given = {
        **chosen,
        "data.train": [tmp_path / "tasks.jsonl"],
        "trackers": [],
        "tools": [double],
        "rewards": [sampled],
    }
    result = train(given)
    found = list(rollouts(result.run))
    assert len(found) == 4 and {one.step for one in found} == {1}
    assert [one.parts["sampled"] for one in found] == [one.reward for one in found]
    assert all(one.reward == one.rollout.n_response_tokens % 3 for one in found)
    assert all(one.advantages is None or len(one.advantages) == one.rollout.n_response_tokens for one in found)
    assert any(one.advantages is not None for one in found)
    for one, row in zip(found, (one.row() for one in found), strict=True):
        assert row["reward"] == row["reward/sampled"] == one.reward
        assert row["response_tokens"] == one.rollout.n_response_tokens and row["response"] == one.rollout.response
    parts = [row for row in segments(result.run) if row["origin"] == "sampled"]
    assert sum(len(row["token_ids"]) for row in parts) == sum(one.rollout.n_sampled_tokens for one in found)
    assert all(len(row["logprobs"]) == len(row["entropies"]) == len(row["token_ids"]) for row in parts)
    assert [row["reward"] for row in ramet.api.runs(tmp_path)] == [metrics(result.run)[0]["reward/roots_mean"]]
    (row,) = metrics(result.run)
    assert row["step"] == 1 and row["reward/mean"] == sum(one.reward or 0.0 for one in found) / 4
    with pytest.raises(ConfigError, match=r"tools\.double.*cluster=ray.*RAMET_PLUGINS"):
        compose({**given, "cluster": "ray"})

    longer = compose({**given, "train.steps": 2})

    def other(number: int) -> int:
        """Double a number, and one more."""
        return 2 * number + 1

    other.__name__ = "double"
    with pytest.raises(ConfigError, match=r"^the code of tools\.double: sha256 was "):
        train({**given, "tools": [other], "train.steps": 2})
    assert train(longer).steps == 2  # with the tool that it was composed with


def test_objects_that_cannot_be_what_they_are_given_for_are_told_with_the_key() -> None:
    def mcp(text: str) -> str:
        """Shares its name with a tool of the core."""
        return text

    def mine(text: str) -> str:
        """Mine."""
        return text

    with pytest.raises(ConfigError, match=r"^tools: 3 cannot be a tool: "):
        compose({"tools": [3]})
    with pytest.raises(ConfigError, match=r"^tools: .*lambda.* cannot be a tool: parameter 'x' must be annotated"):
        compose({"tools": [lambda x: x]})
    with pytest.raises(ConfigError, match=r"^tools: there are two called 'mine'; rename one$"):
        compose({"tools": [mine, mine]})
    with pytest.raises(ConfigError, match=r"^tools: the name 'mcp' is taken by the plugin 'core'; rename your object$"):
        compose({"tools": [mcp]})


def test_a_reward_of_one_rollout_has_the_name_of_its_function(tmp_path: Path) -> None:
    def own_length(rollout: Rollout) -> float:
        return float(len(rollout.response))

    config = compose({"model.path": tmp_path, "rewards": [per_rollout(own_length)]}).config
    assert list(config.rewards) == ["own_length"]


def test_a_configuration_that_was_changed_after_composing_is_refused(model: Path, tmp_path: Path) -> None:
    config = compose([*keys(model, tmp_path), "train.steps=3"])
    config.config.train.steps = 1
    with pytest.raises(ConfigError, match=r"give the new ones to compose: train\.steps: 3 -> 1$"):
        train(config)
    assert not (tmp_path / "run").exists()


@needs_plugins
def test_run_takes_any_jobs_configuration(model: Path, tmp_path: Path) -> None:
    assert run(compose(keys(model, tmp_path))).steps == 1


def test_run_async_raises_what_the_work_raised_with_and_without_a_loop() -> None:
    async def fails() -> None:
        raise ConfigError("wrong")

    async def notebook() -> None:
        run_async(fails())

    for call in (lambda: run_async(fails()), lambda: asyncio.run(notebook())):
        with pytest.raises(ConfigError, match=r"^wrong$"):
            call()


def test_an_interrupt_inside_a_running_event_loop_cancels_the_work() -> None:
    ended: list[str] = []

    async def long() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cleaned up")

    async def notebook() -> None:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with StopListener().listening():
            run_async(long())

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's is ignored
    started = time.monotonic()
    try:
        with pytest.raises(Stopped):
            asyncio.run(notebook())
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == ["cleaned up"]
    assert time.monotonic() - started < 30


def test_a_notebook_completes_what_the_module_is_for() -> None:
    assert dir(ramet.api) == [
        "RecordedRollout", "calls", "compose", "evaluate", "frame", "metrics", "results", "rollouts", "run", "runs",
        "scores", "segments", "sft", "train",
    ]  # fmt: skip


def test_rows_are_a_data_frame_where_pandas_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    table = frame([{"step": 1, "reward/mean": 0.5}, {"step": 2}])
    assert isinstance(table, pandas.DataFrame) and list(table.columns) == ["step", "reward/mean"] and len(table) == 2
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        frame([])


def test_importing_the_module_loads_neither_torch_nor_hydra() -> None:
    code = "import sys, ramet.api; print([m for m in ('torch', 'hydra', 'transformers', 'ray') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_call_in_a_thread_that_hangs_does_not_keep_the_end_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "END_S", 0.05)
    monkeypatch.setattr(event_loop, "left_threads", left := list[threading.Thread]())
    free = threading.Event()

    async def work() -> str:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(free.wait, 20), 0.05)
        return "ended"

    assert run_async(work()) == "ended"
    assert len(left) == 1 and left[0].is_alive(), "the process knows what would keep it"
    free.set()
    left[0].join()
