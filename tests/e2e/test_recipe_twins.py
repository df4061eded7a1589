"""A tiny twin of a recipe: the same algorithm, rewards, tools, step and benchmarks, with a tiny model on a CPU.

One of each kind of job runs here; `make test-recipes` (`--all-recipes`) runs one of every recipe.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from ramet.config.recipes import Recipe, recipes
from ramet.models.tiny import make_tiny_model

ONE_OF_EACH = (
    "sft_qwen2.5_7b",
    "sft_qwen2.5_7b_lora_24gb",
    "arpo_qwen2.5_7b_reasoning",
    "ppo_qwen2.5_7b_reasoning",
    "eval_chinese",
    "function_calling_qwen2.5_7b",
)
LISTED = {entry.name: entry for entry in recipes() if entry.hardware}
OTHERS = [pytest.param(name, marks=pytest.mark.recipes) for name in LISTED if name not in ONE_OF_EACH]
LEFT_OUT = ("engine", "cluster")  # of the machine, and not of what is learned
SIZES: dict[str, dict[str, Any]] = {  # that are made small, by job
    "train": {
        "model": {"dtype": "float32", "attention": "auto"},
        "data": {"max_prompt_tokens": 768},
        "rollout": {"group_size": 4, "max_response_tokens": 48, "max_concurrent": 8},
        "train": {"steps": 1, "tasks_per_step": 2, "minibatches": 2, "eval_every": 0, "save_every": 1},
        "policy": {"max_microbatch_tokens": 2048, "offload": "none"},
    },
    "sft": {
        "model": {"dtype": "float32"},
        "sft": {
            "strategy": "none", "sequences_per_step": 2, "max_tokens": 1024, "max_microbatch_tokens": 1024,
            "trainer": {"max_steps": 2, "save_steps": 2},
        },
    },
    "eval": {
        "model": {"dtype": "float32"},
        "data": {"max_prompt_tokens": 1536},
        "rollout": {"max_response_tokens": 32},
        "evaluate": {"k": 1},
    },
}  # fmt: skip
TEMPLATE = (  # shows tools, as `hermes` needs it
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool.function.name }}{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}{{ '<|user|>' + m.role[0] if m.role == 'tool' else '<|' + m.role + '|>' }}"
    "{{ m.content + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TRACE = [
    {"from": "human", "value": "What is 6*7?"},
    {"from": "gpt", "value": "<think>6*7</think><python>print(6*7)</python><result>\n42\n</result><answer>42</answer>"},
]
WEATHER = {"name": "weather", "description": "Weather of a city.", "parameters": {"city": {"type": "str"}}}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model, traces and tasks."""
    folder = tmp_path_factory.mktemp("inputs")
    make_tiny_model(folder / "model", hidden=32, layers=2, heads=2, intermediate=64, max_positions=2048)
    (folder / "template.jinja").write_text(TEMPLATE)
    lines(folder / "traces.jsonl", [{"conversations": TRACE}] * 4)
    lines(folder / "tasks.jsonl", [{"prompt": f"{i}+1?", "answer": str(i + 1)} for i in range(4)])
    calls = json.dumps([{"name": "weather", "arguments": {"city": "Oslo"}}])  # as xLAM writes its rows
    row = {"answers": calls, "tools": json.dumps([WEATHER])}
    lines(folder / "calls.jsonl", [{"id": i, "query": f"{i}?", **row} for i in range(4)])
    return folder


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def twin(listed: Recipe, folder: Path) -> None:
    """Write the recipe `twin` into `folder`. A reward that differs by rollout is added, so that there is an update."""
    choices = {group: names for group, names in listed.choices.items() if group not in LEFT_OUT}
    settings = {section: values for section, values in listed.settings.items() if section not in LEFT_OUT}
    if listed.job == "train":
        choices["rewards"] = [*choices["rewards"], "e2e_even"]
        resamples = any(reward.get("resample") for reward in settings.get("rewards", {}).values())
        settings["rewards"] = {**settings.get("rewards", {}), "e2e_even": {"resample": resamples}}
    sizes = {**SIZES[listed.job], **machine_of(listed)}
    written = OmegaConf.merge(settings, *({section: values} for section, values in sizes.items()))
    text = OmegaConf.to_yaml({"defaults": [{f"override /{group}": names} for group, names in choices.items()]})
    (folder / "experiment").mkdir(parents=True)
    (folder / "experiment/twin.yaml").write_text(f"# @package _global_\n{text}{OmegaConf.to_yaml(written)}")


def machine_of(listed: Recipe) -> Mapping[str, Any]:
    """What the tools and benchmarks take of the machine: no network, few processes."""
    tools = {name: {"params": params} for name, params in TOOLS.items() if name in listed.settings.get("tools", {})}
    if listed.job != "eval":
        return {"tools": tools}
    return {"tools": tools, "benchmarks": {name: {"split": "sample", "limit": 1} for name in listed.data}}


TOOLS: dict[str, dict[str, Any]] = {
    "python": {"slots": 1, "preload": []},
    "search": {"provider": "corpus", "cache": "off"},
}


def command(listed: Recipe, inputs: Path) -> list[str]:
    is_hermes = listed.choices.get("rollout_step") == "hermes"
    tasks = "calls" if listed.choices.get("tools") == ["from_row"] else "tasks"
    data = {"train": f"data.train=[{inputs}/{tasks}.jsonl]", "sft": f"sft.data=[{inputs}/traces.jsonl]"}
    return [
        listed.job, "experiment=twin", f"model.path={inputs}/model", "run.name=run", "run.threads=1",
        "rollout_step.system_prompt=never",
        *([f"model.chat_template={inputs}/template.jinja"] if is_hermes else []),
        *([data[listed.job]] if listed.job in data else []),
        *(["data.valid=[]"] if listed.job == "train" else []),
    ]  # fmt: skip


@pytest.mark.parametrize("name", [*ONE_OF_EACH, *OTHERS])
def test_a_tiny_twin_of_a_recipe_runs(name: str, ramet, inputs: Path, tmp_path: Path) -> None:
    listed = LISTED[name]
    twin(listed, tmp_path / "hydra_configs")
    ended = ramet(*command(listed, inputs), cwd=tmp_path)
    assert ended.code == 0, ended.err
    run = tmp_path / "runs/run"
    if listed.job == "eval":
        measured = {one["name"]: one["n_rollouts"] for one in json.loads((run / "results.json").read_text())["results"]}
        assert measured == dict.fromkeys(listed.data, 1)
        return
    assert (run / "model/model.safetensors").is_file()
    if listed.job == "train":
        [last] = [
            json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if "train/grad_norm" in line
        ]
        assert last["train/grad_norm"] > 0
