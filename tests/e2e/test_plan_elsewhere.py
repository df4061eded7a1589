"""`--dry-run --on 8x80GiB` on a laptop: without weights, tokenizer, GPUs, vLLM, Ray, DeepSpeed and peft."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

RECIPES = Path(__file__).resolve().parents[2] / "hydra_configs"
WITHOUT = {"E2E_WITHOUT": "vllm,ray,deepspeed,peft"}
QWEN_7B = {  # facts of the published config.json
    "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip
WEIGHTS = "weights in model: whether they are complete, and belong to the model that config.json describes"
TOKENIZER = (
    "tokenizer in model: how many tokens prompts have, the chat template, and whether its vocabulary fits the model"
)
VLLM = "vLLM: its version, and whether it can compute this model"
RAY = "Ray: its version, and whether a cluster has room for the workers"


@pytest.fixture
def laptop(tmp_path: Path) -> Path:
    """A folder with data and a model folder that holds `config.json` alone."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN_7B))
    tasks = [{"prompt": f"{i}+1?", "answer": str(i + 1)} for i in range(300)]
    (tmp_path / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    talk = [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "<answer>2</answer>"}]
    (tmp_path / "traces.jsonl").write_text((json.dumps({"conversations": talk}) + "\n") * 4)
    return tmp_path


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def facts(out: str) -> dict[str, list[str]]:
    """The lines of a plan by the fact that they belong to."""
    found: dict[str, list[str]] = {}
    width = len("  would write  ")
    for line in out.splitlines()[1:]:
        name = line[:width].strip()
        found.setdefault(name or list(found)[-1], []).append(line[width:].strip())
    return found


@pytest.mark.parametrize("recipe", ["arpo_qwen2.5_7b_reasoning", "arpo_qwen3_14b_deepsearch"])
def test_a_recipe_for_gpus_is_planned_from_config_json_alone(ramet, laptop: Path, recipe: str):
    before = files(laptop)
    command = ["train", f"experiment={recipe}", "model.path=model", "data.train=[tasks.jsonl]", "run.name=first"]
    planned = [*command, "--config-dir", str(RECIPES), "--dry-run"]
    ended = ramet(*planned, "--on", "8x80GiB", cwd=laptop, **WITHOUT)
    assert ended.code == 0 and ended.err == ""
    plan = facts(ended.out)
    assert plan["model"] == ["model (7,615,616,512 parameters, bfloat16)"]
    assert plan["tasks"] == ["300 of 300 from tasks.jsonl; lengths of prompts are not known"]
    [placement] = plan["placement"]
    assert placement.startswith("cluster ray: 8 policy ranks, ") and placement.endswith(" on cuda 0 to 7")
    assert plan["memory"][0].split() == "cuda 0 to 7: policy and engine, GiB each update rollouts".split()
    assert "of 80.0 GiB" in plan["memory"][-1]
    assert plan["tools"] == ["python, search"]
    assert plan["not checked"] == ["because this machine has no", WEIGHTS, TOKENIZER, VLLM, RAY]
    assert plan["time"][0].startswith("not estimated: no speed is known of these GPUs")
    ended = ramet(*planned, "--on", "8xH100", "--response-tokens", "900", "--tool-s", "3", cwd=laptop, **WITHOUT)
    first, *phases, bound, counted, gains = facts(ended.out)["time"]
    assert first.startswith("estimated, seconds of a step on 8xH100")
    assert [line.split()[0] for line in phases] == ["rollouts", "log-probabilities", "update", "sync,", "checkpoint",
                                                    "driver", "step"]  # fmt: skip
    assert bound.startswith("bounded by ") and " tool calls of 3 s (--tool-s)" in counted and " s less" in gains
    ended = ramet(*planned, "--on", "4x80GiB", cwd=laptop, **WITHOUT)
    [error] = ended.errors
    assert error.startswith("cluster: 8 policy ranks and ") and " rollout workers need 8 devices" in error
    assert files(laptop) == before


def test_without_a_named_machine_the_plan_is_for_this_one_and_refused(ramet, laptop: Path):
    command = ["train", "model.path=model", "data.train=[tasks.jsonl]", "rewards=[e2e_even]", "cluster=ray"]
    ended = ramet(*command, "engine=vllm", "--dry-run", cwd=laptop, **WITHOUT)
    assert ended.code == 1
    hint, *errors = ended.err.splitlines()
    assert hint == "this plans for this machine; for GPUs of another one add --on, as in --on 8x80GiB"
    starts = ["error: model.path: model has no weights", "error: model.path: 'model' holds no tokenizer",
              "error: engine=vllm: vLLM is not installed", "error: cluster=ray: Ray is not installed"]  # fmt: skip
    assert [error.partition(";")[0] for error in errors] == starts


def test_what_contradicts_the_named_gpus_is_refused(ramet, laptop: Path):
    command = ["train", "model.path=model", "data.train=[tasks.jsonl]", "rewards=[e2e_even]", "model.device=cpu"]
    more = ["run.deterministic=true", "engine.params.slots=512", "--dry-run", "--on", "1x80GiB"]
    ended = ramet(*command, *more, cwd=laptop, **WITHOUT)
    assert ended.errors[:2] == [
        "--on 1x80GiB: these are GPUs, and model.device=cpu uses none; set auto or cuda",
        "--on 1x80GiB: these are GPUs, and run.deterministic=true holds on CPU only; set false",
    ]


def test_an_evaluation_is_planned_from_config_json_alone(ramet, laptop: Path):
    before = files(laptop)
    command = ["eval", "model.path=model", "benchmarks=[arithmetic]", "benchmarks.arithmetic.limit=3", "run.name=e"]
    gpus = ["engine=vllm", "cluster=ray", "cluster.rollout_workers=4", "model.dtype=bfloat16", "evaluate.k=2"]
    ended = ramet(
        *command, *gpus, "engine.params.tensor_parallel=2", "--dry-run", "--on", "8x80GiB", cwd=laptop, **WITHOUT
    )
    assert (ended.code, ended.err) == (0, "")
    plan = facts(ended.out)
    [placement] = plan["placement"]
    assert placement.startswith("cluster ray: 4 rollout workers ") and " of 2 devices each: engine on " in placement
    assert plan["memory"][0].split() == "cuda 0 to 7: engine, GiB each rollouts".split()
    assert not [line for line in plan["memory"] if "policy" in line]
    assert plan["not checked"] == ["because this machine has no", WEIGHTS, TOKENIZER, VLLM, RAY]
    ended = ramet(*command, *gpus, "--dry-run", "--on", "2x80GiB", cwd=laptop, **WITHOUT)
    [error] = ended.errors
    assert error.startswith("cluster: 4 rollout workers need 4 devices")
    assert files(laptop) == before


def test_a_fine_tuning_is_planned_from_config_json_alone(ramet, laptop: Path):
    before = files(laptop)
    command = ["sft", "model.path=model", "sft.data=[traces.jsonl]", "sft.strategy=zero3", "model.dtype=bfloat16"]
    planned = [*command, "cluster.policy_workers=8", "run.name=warm", "--dry-run"]
    ended = ramet(*planned, "--on", "8x80GiB", cwd=laptop, **WITHOUT)
    assert (ended.code, ended.err) == (0, "")
    plan = facts(ended.out)
    assert plan["rows"] == ["4 from traces.jsonl; their lengths are not known"]
    assert plan["steps"] == ["not known without a tokenizer; each of 16 sequences"]
    assert plan["placement"] == ["zero3 over 8 processes, each on cuda"]
    assert plan["memory"][0].split() == "cuda 0 to 7: policy, GiB each update".split()
    assert plan["memory"][-1] == "the largest need of a device: 21.6 of 80.0 GiB"
    assert plan["not checked"] == ["because this machine has no", WEIGHTS, TOKENIZER, "DeepSpeed: its version"]
    ended = ramet(*planned, "--on", "8x16GiB", cwd=laptop, **WITHOUT)
    [error] = ended.errors
    assert error.startswith("memory: cuda 0 to 7 (policy) would need 21.6 GiB ") and " has 16.0 GiB " in error
    ended = ramet(*planned, "--on", "4x80GiB", cwd=laptop, **WITHOUT)
    assert ended.errors == ["cluster.policy_workers=8: each takes its own GPU, and --on 4x80GiB has fewer"]
    assert files(laptop) == before
