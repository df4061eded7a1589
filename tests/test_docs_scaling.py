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
from ramet.planning.drawn import Expected
from ramet.planning.memory import Inputs, estimate
from ramet.planning.memory_report import check_memory, table
from ramet.planning.memory_sft import plan_sft_memory
from ramet.planning.model_shape import read_shape
from ramet.planning.placement import machine_of
from ramet.planning.step_time import UPDATE, StepTime, step_time
from ramet.planning.time_report import time_table

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
    "arpo_qwen3_32b_reasoning": {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 5120, "intermediate_size": 25600, "head_dim": 128,
        "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "tie_word_embeddings": False,
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
    assert flags in (
        [],
        ["--dry-run", "--on", "8x80GiB"],
        ["--dry-run", "--on", "8x8xH100"],
        ["--replay", "runs/first"],
    )
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


def inputs_of(what: str, folder: Path, gpu: str) -> Inputs:
    """Of a plan that begins with `plan` or `time`: a recipe with changes, or `long`, the page's command of that run."""
    _, experiment, *overrides = what.split()
    if experiment == "long":
        (command,) = [shlex.split(line)[2:] for line in commands() if "run.name=long" in line]
        overrides = [word for word in command if "=" in word and not word.startswith(("experiment=", "model.path="))]
        experiment = next(word for word in command if word.startswith("experiment=")).removeprefix("experiment=")
    (folder / "config.json").write_text(json.dumps(MODELS[experiment]))
    config = compose([f"experiment={experiment}", f"model.path={folder}", *overrides], job="train").config
    nodes = "8x" if config.cluster.policy_workers == 64 else ""
    machine = machine_of(config, f"{nodes}8x{gpu}")
    return Inputs(config=config, shape=read_shape(config.model), machine=machine)


@pytest.mark.parametrize(("what", "shown"), [(what, text) for what, text in BLOCKS if what.startswith("plan ")])
def test_a_plan_of_the_page_is_the_one_of_the_code(
    what: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    _, experiment, *overrides = what.split()
    if experiment == "sft":
        (tmp_path / "config.json").write_text(json.dumps(MODELS[experiment]))
        assert shown.splitlines() == planned_sft(tmp_path, overrides)
        return
    plan = estimate(inputs_of(what, tmp_path, "80GiB"))
    refused = [f"error: {problem}" for problem in check_memory(plan)]
    assert shown.splitlines() == (refused or [str(plan.placement), *table(plan)])


@pytest.mark.parametrize(("what", "shown"), [(what, text) for what, text in BLOCKS if what.startswith("time ")])
def test_the_seconds_of_the_page_are_those_of_the_code(
    what: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    found = step_time(estimate(inputs_of(what, tmp_path, "H100")), Expected())
    assert isinstance(found, StepTime)
    assert shown.splitlines() == time_table(found, Expected())
    if what == "time long":
        exchanged = found.update.update() - found.update.update(exchanges=False)
        assert f"{exchanged:.1f} of the {found.phases[UPDATE]:.0f} s of the update" in " ".join(PAGE.split())


def test_what_the_walk_of_32b_found_is_what_the_page_says() -> None:
    (walked,) = json.loads((ROOT / "bench" / "results" / "walk.json").read_text())["runs"]
    page = " ".join(PAGE.split())
    assert (walked["blocks"], walked["ranks"], walked["replicas"]) == (64, 64, 4)
    assert walked["held"] == walked["planned"] and walked["checkpoint"] == walked["planned_checkpoint"]
    assert f"is {walked['peak'] / 2**30:.1f} GiB, where this plan has {walked['planned_peak'] / 2**30:.1f}" in page
    assert f"{walked['planned_peak'] / walked['peak'] - 1:.1%}".replace("%", " % more") in page
    assert f"in {walked['chunks']} chunks of up to {walked['largest_chunk'] / 1e9:.1f} GB" in page
    assert f"a rank holds {walked['sending'] / 2**30:.1f} GiB" in page
    assert f"checkpoint ({walked['checkpoint'] / 1e9:.0f} GB)" in page


def planned_sft(model: Path, overrides: list[str]) -> list[str]:
    """Of the page's command."""
    (command,) = [shlex.split(line)[2:] for line in commands() if line.startswith("ramet sft ")]
    config = compose([*command, f"model.path={model}", *overrides], job="sft").config
    plan = plan_sft_memory(config, machine_of(config, "8x80GiB"))
    return [f"error: {problem}" for problem in check_memory(plan)] or table(plan)
