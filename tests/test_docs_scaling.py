"""docs/scaling.md is true: its commands compose, its keys exist, its plans are those of the code."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from ramet.config.compose import compose
from ramet.config.schema import Config
from ramet.engines.config import VllmEngineConfig
from ramet.planning.memory import Inputs, estimate
from ramet.planning.memory_report import check_memory, table
from ramet.planning.memory_sft import plan_sft_memory
from ramet.planning.model_shape import read_shape
from ramet.planning.placement import machine_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "scaling.md").read_text()
BLOCKS = re.findall(r"^```([^\n]*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
# Facts of the published models' config.json.
QWEN_7B = {
    "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "sft": QWEN_7B,
    "arpo_qwen2.5_7b_reasoning": QWEN_7B,
    "arpo_qwen3_14b_deepsearch": {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 5120, "intermediate_size": 17408, "head_dim": 128,
        "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 8, "tie_word_embeddings": False,
    },
}  # fmt: skip


def commands() -> list[str]:
    """Every `ramet …` of the page, with lines that go on joined; what the shell adds after it is cut off."""
    text = "\n".join(block for _, block in BLOCKS).replace("\\\n", " ")
    return [line.strip().removesuffix("&").strip() for line in text.splitlines() if line.startswith("ramet ")]


def test_the_page_has_commands_for_every_backend() -> None:
    joined = "\n".join(commands())
    assert len(commands()) >= 6
    assert all(
        what in joined for what in ("cluster=ray", "cluster.address=auto", "sft.strategy=", "ramet eval", "--on")
    )


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_page_composes(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    _, job, *words = shlex.split(command)
    overrides = [word for word in words if "=" in word]
    flags = [word for word in words if "=" not in word]
    assert flags in ([], ["--dry-run", "--on", "8x80GiB"], ["--replay", "runs/first"])
    own = ["model.path=m"] if "--replay" in flags else []  # a replay has the keys of its run
    assert compose([*own, *overrides], job=job).job == job


def test_the_keys_and_options_of_the_table_exist() -> None:
    sections = {field.name: field.default_factory for field in dataclasses.fields(Config)}
    options = {field.name for field in dataclasses.fields(VllmEngineConfig)}
    named = re.findall(r"`(cluster|policy|train|model|rollout|run|sft)\.(\w+)[=`]", PAGE)
    assert len(named) > 20
    for section, key in named:
        factory = sections[section]
        assert callable(factory) and hasattr(factory(), key), f"{section}.{key}"
    assert set(re.findall(r"`engine\.params\.(\w+)", PAGE)) <= options


@pytest.mark.parametrize(("what", "shown"), [(what, text) for what, text in BLOCKS if what.startswith("plan ")])
def test_a_plan_of_the_page_is_the_one_of_the_code(
    what: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    _, experiment, *overrides = what.split()
    (tmp_path / "config.json").write_text(json.dumps(MODELS[experiment]))
    if experiment == "sft":
        assert shown.splitlines() == planned_sft(tmp_path, overrides)
        return
    config = compose([f"experiment={experiment}", f"model.path={tmp_path}", *overrides], job="train").config
    plan = estimate(Inputs(config=config, shape=read_shape(config.model), machine=machine_of(config, "8x80GiB")))
    refused = [f"error: {problem}" for problem in check_memory(plan)]
    assert shown.splitlines() == (refused or [str(plan.placement), *table(plan)])


def planned_sft(model: Path, overrides: list[str]) -> list[str]:
    """Of the page's command."""
    (command,) = [shlex.split(line)[2:] for line in commands() if line.startswith("ramet sft ")]
    config = compose([*command, f"model.path={model}", *overrides], job="sft").config
    plan = plan_sft_memory(config, machine_of(config, "8x80GiB"))
    return [f"error: {problem}" for problem in check_memory(plan)] or table(plan)
