"""`ramet train` on the published training data of ARPO, with both engines: counted, killed, resumed.

With both tools that its prompts promise; and with the flat layout, where `data_source` chooses the rewards and `tools`
restricts the tools.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ramet.data.sampler import Sampler
from ramet.data.tasks import load_tasks
from ramet.rollout.record import GroupRecord, read_records
from ramet.runs.manifest import DataRecord, read_manifest

TRAIN = Path(__file__).resolve().parents[3] / "shared" / "data" / "rl" / "train_10k.parquet"
CACHE = TRAIN.parents[1] / "search_cache.json"
LIMIT, SEED = 200, 3
ENGINES = [
    "torch",
    pytest.param(
        "vllm",
        marks=[pytest.mark.slow, pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")],
    ),
]
Command = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small, but with room for prompts of two thousand bytes."""
    from ramet.models.tiny import make_tiny_model

    folder = tmp_path_factory.mktemp("published") / "model"
    return make_tiny_model(folder, hidden=64, layers=1, heads=2, intermediate=64, max_positions=2048)


@pytest.fixture
def command(request: pytest.FixtureRequest, ramet, tmp_path: Path) -> Command:
    """Runs `ramet` with this engine: exit code and output. vLLM wants a process that nothing else was imported in."""

    def forked(*argv: str, **env: str) -> tuple[int, str]:
        ended = ramet(*argv, cwd=tmp_path, **env)
        return ended.code, ended.err + ended.out

    def fresh(*argv: str, **env: str) -> tuple[int, str]:
        code = "import sys; from ramet.cli import main; sys.exit(main())"
        ended = subprocess.run(
            [sys.executable, "-c", code, *argv], capture_output=True, text=True, cwd=tmp_path, env=environment() | env
        )
        return ended.returncode, ended.stderr + ended.stdout

    return forked if "vllm" not in request.node.name else fresh


def environment() -> dict[str, str]:
    import os

    plugin = str(Path(__file__).parent / "plugin")
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": plugin, "RAMET_PLUGINS": "e2e_plugin"}


def small_run(model: Path, *more: str) -> list[str]:
    return [
        "train", f"model.path={model}", "run.root=.", "run.name=run", f"run.seed={SEED}", "run.threads=1",
        "train.tasks_per_step=2", "rollout.group_size=2", "rollout.max_response_tokens=16", "train.save_every=1",
        "policy.lr=0.001", "tools=[python]", *more,
    ]  # fmt: skip


def steps_of(run: Path) -> dict[int, list[GroupRecord]]:
    files = sorted((run / "rollouts").glob("step_*.jsonl.gz"))
    return {int(path.name[5:11]): list(read_records(path)) for path in files}


@pytest.mark.skipif(not TRAIN.is_file(), reason="needs ../shared/data/rl")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_steps_on_the_published_data_are_killed_between_and_resumed(command: Command, model, tmp_path, engine):
    argv = small_run(
        model, f"engine={engine}", f"data.train=[{TRAIN}]", f"data.limits.train={LIMIT}", "data.max_prompt_tokens=1300",
        "rewards=[qa_f1]", "train.steps=2",
    )  # fmt: skip
    code, log = command(*argv, E2E_KILL="saved:1", E2E_KILL_LOG=str(tmp_path / "killed"))
    assert code == -9 and (tmp_path / "killed").exists(), log
    run = tmp_path / "run"
    assert list(steps_of(run)) == [1]
    assert f"repaired a corrupted \\boxed in {LIMIT} of {LIMIT} tasks" in log
    code, log = command(*argv)
    assert code == 0, log
    assert "resumed after step 1" in log
    data = read_manifest(run / "manifest.json").data["train"]
    assert 0 < data.too_long < LIMIT
    assert re.search(rf"left out: {data.too_long} of {LIMIT} .* data\.max_prompt_tokens=1300", log)
    assert (data.tasks, data.repaired, data.skipped) == (LIMIT, LIMIT, 0)
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [1, 2]
    check_tasks(steps_of(run), data)
    assert (run / "model/model.safetensors").is_file()


def check_tasks(steps: dict[int, list[GroupRecord]], data: DataRecord) -> None:
    """Both steps hold the tasks that one sampler gives, whole prompts and gold answers, and a score for each."""
    groups = [record.group for step in (1, 2) for record in steps[step]]
    ids = {task.id: number for number, task in enumerate(load_tasks(data.files, limit=LIMIT).tasks)}
    positions = [ids[group.task.id] for group in groups]
    assert len(set(positions)) == 4
    kept = LIMIT - data.too_long
    sampler = Sampler(kept, 2, SEED)
    positions = sampler.draw(2) + sampler.draw(2)
    order = sorted(range(4), key=positions.__getitem__)
    assert [positions[i] for i in order] == sorted(positions)  # leaving out keeps the order of the file
    for group in groups:
        prompt = group.task.prompt
        assert [message.role for message in prompt] == ["system", "user"]
        assert "\b" not in prompt[0].content and prompt[0].content.count("\\boxed{") == 2
        assert group.task.data_source == "DR_grpo_mix" and group.task.answer[0]
        assert len(group.rollouts) == 2
        assert all(set(rollout.parts) == {"qa_f1"} for rollout in group.rollouts)


@pytest.mark.skipif(not TRAIN.is_file(), reason="needs ../shared/data/rl")
@pytest.mark.skipif(not CACHE.is_file(), reason="needs ../shared/data/search_cache.json")
def test_the_published_prompts_train_with_both_tools_that_they_promise(ramet, model: Path, tmp_path: Path):
    """As docs/search.md says, with a part of the file and a corpus of the published cache."""
    built = ramet("corpus", "build", str(CACHE), "--out", "corpus.sqlite", cwd=tmp_path)
    assert (built.code, built.out) == (0, "corpus.sqlite: 8294 passages, 4 stored failures left out\n"), built.err
    argv = small_run(
        model, "algorithm=arpo", f"data.train=[{TRAIN}]", "data.limits.train=32", "data.max_prompt_tokens=1300",
        "tools=[python,search]", "tools.search.params.corpus=corpus.sqlite", "rewards=[deep_research]", "train.steps=1",
        "train.minibatches=1",
    )  # fmt: skip
    planned = ramet(*argv, "--dry-run", cwd=tmp_path)
    assert planned.code == 0, planned.err
    facts = [" ".join(line.split()) for line in planned.out.splitlines()]
    assert "tools python, search" in facts and not [fact for fact in facts if fact.startswith("tags ")]
    ended = ramet(*argv, cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "name tags of no tool" not in planned.err + ended.err
    log = (tmp_path / "run" / "run.log").read_text()
    assert "corpus.sqlite, 8294 passages" in log
    groups = [record.group for record in steps_of(tmp_path / "run")[1]]
    assert [len(group.rollouts) for group in groups] == [2, 2]
    for group in groups:
        assert all(tag in group.task.prompt[0].content for tag in ("<search>", "<python>"))


PROMISING = (
    "Think within <think> </think>, search within <search> </search>, compute within <python> </python>; results are "
    "within <result> </result>, the answer within <answer> </answer>."
)
REPLY = (
    "<search>lamp</search> <result>\n[1] lamp: six\n</result>"
    "<python>6*7</python> <result>\n42\n</result><answer>42</answer>"
)


def test_rows_in_the_published_form_call_both_tools_that_their_prompt_promises(ramet, model: Path, tmp_path: Path):
    """A model that was taught the calls trains on such rows, with a corpus of its own and the real sandbox."""
    prompt = [{"role": "system", "content": PROMISING}, {"role": "user", "content": "q"}]
    row = {
        "data_source": "DR_mix", "prompt": prompt, "ability": "qa", "metadata": None,
        "reward_model": {"ground_truth": "42", "style": "rule"},
        "extra_info": {"index": 0, "question": "q", "split": "train", "need_tools_kwargs": False},
    }  # fmt: skip
    pq.write_table(pa.Table.from_pylist([row, row]), tmp_path / "train.parquet")
    trace = {"messages": [*prompt, {"role": "assistant", "content": REPLY}]}
    (tmp_path / "traces.jsonl").write_text(f"{json.dumps(trace)}\n" * 8)
    (tmp_path / "passages.jsonl").write_text(json.dumps({"text": "lamp: six"}) + "\n")
    assert ramet("corpus", "build", "passages.jsonl", "--out", "corpus.sqlite", cwd=tmp_path).code == 0
    tools = ["tools=[python,search]", "tools.search.params.corpus=corpus.sqlite", "tools.python.params.preload=[]"]
    taught = ramet(
        "sft", f"model.path={model}", "sft.data=[traces.jsonl]", "run.root=.", "run.name=sft", "run.threads=1", *tools,
        "sft.lr=5e-3", "sft.sequences_per_step=4", "sft.trainer.max_steps=60", "sft.trainer.warmup_ratio=0",
        "sft.trainer.lr_scheduler_type=constant_with_warmup",
        cwd=tmp_path,
    )  # fmt: skip
    assert taught.code == 0, taught.err
    argv = small_run(
        tmp_path / "sft/model", "data.train=[train.parquet]", "data.max_prompt_tokens=400", "rewards=[deep_research]",
        "train.steps=2", "rollout.max_response_tokens=200", *tools,
    )  # fmt: skip
    ended = ramet(*argv, cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "name tags of no tool" not in ended.err
    steps = steps_of(tmp_path / "run")
    rollouts = [one.rollout for step in (1, 2) for record in steps[step] for one in record.group.rollouts]
    calls = {(call.name, str(call.status), call.text) for rollout in rollouts for call in rollout.tool_calls}
    assert {("search", "ok", "[1] lamp: six"), ("python", "ok", "42")} <= calls
    assert "42" in [rollout.answer for rollout in rollouts]
    assert all(one.valid for one in rollouts)


def test_sources_choose_rewards_and_the_column_tools_restricts_tools(ramet, model: Path, tmp_path: Path):
    rows = [
        {"prompt": "1+1?", "answer": "2", "data_source": "sums", "tools": ["python"]},
        {"prompt": "who?", "answer": "me", "data_source": "facts", "tools": []},
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = small_run(
        model, "data.train=[tasks.jsonl]", "data.max_prompt_tokens=1000", "train.steps=1",
        "rewards=[qa_f1,format,math]", "rewards.qa_f1.sources=[facts]", "rewards.math.sources=[sums]",
    )  # fmt: skip
    ended = ramet(*argv, cwd=tmp_path)
    assert ended.code == 0, ended.err
    found = {record.group.task.data_source: record.group for record in steps_of(tmp_path / "run")[1]}
    applied = {source: {p for p in group.rollouts[0].parts if "/" not in p} for source, group in found.items()}
    assert applied == {"sums": {"math", "format"}, "facts": {"qa_f1", "format"}}
    prompts = {source: group.rollouts[0].rollout.segments[0].text for source, group in found.items()}
    assert "<python>" in prompts["sums"] and "python" not in prompts["facts"]


def test_a_run_refuses_to_go_on_with_another_order_or_other_data(ramet, model: Path, tmp_path: Path):
    tasks = [{"prompt": f"{n}?", "answer": "2"} for n in range(4)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tasks))
    argv = small_run(
        model, "data.train=[tasks.jsonl]", "data.max_prompt_tokens=1000", "train.steps=1", "rewards=[format]"
    )
    assert ramet(*argv, cwd=tmp_path).code == 0
    for change, key in (
        ("run.seed=4", "run.seed"),
        ("data.order=file", "data.order"),
        ("data.limits.train=3", "data.limits.train"),
    ):
        ended = ramet(*argv, change, "train.steps=2", cwd=tmp_path)
        assert ended.code == 1 and any(f"{key} was" in error for error in ended.errors), ended.err
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in reversed(tasks)))
    ended = ramet(*argv, "train.steps=2", "run.allow_config_change=true", cwd=tmp_path)
    assert ended.code == 1 and "the training data changed" in ended.err
