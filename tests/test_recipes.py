"""The recipes of `hydra_configs/` say what they need, fit the hardware that they name and stand in their page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet.cli.recipes import planned
from ramet.config.checks import check
from ramet.config.compose import compose
from ramet.config.hydra_adapter import shipped_recipes
from ramet.config.recipes import Recipe, recipes
from ramet.config.resolved import Resolved
from ramet.config.schema import Config, Strategy
from ramet.config.sections import COMPONENTS
from ramet.errors import ConfigErrors
from ramet.planning.drawn import Expected
from ramet.planning.memory import MemoryPlan
from ramet.planning.memory_report import table
from ramet.planning.model_shape import read_shape
from ramet.planning.step_time import StepTime, step_time
from ramet.planning.time_report import LEARNED, gains, time_changes
from ramet.plugins import load_plugins

ROOT = Path(__file__).resolve().parents[1]
LISTED = {entry.name: entry for entry in recipes()}
PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
QWEN2, QWEN3 = {"model_type": "qwen2"}, {"model_type": "qwen3", "head_dim": 128}
SIZES = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads".split()
# Facts of the published models' config.json, and how many parameters their pages give.
MODELS: dict[str, tuple[dict[str, Any], list[int], bool, int]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": (QWEN2, [151936, 896, 4864, 24, 14, 2], True, 494_032_768),
    "Qwen/Qwen2.5-1.5B-Instruct": (QWEN2, [151936, 1536, 8960, 28, 12, 2], True, 1_543_714_304),
    "Qwen/Qwen2.5-3B-Instruct": (QWEN2, [151936, 2048, 11008, 36, 16, 2], True, 3_085_938_688),
    "Qwen/Qwen2.5-7B-Instruct": (QWEN2, [152064, 3584, 18944, 28, 28, 4], False, 7_615_616_512),
    "Qwen/Qwen3-8B": (QWEN3, [151936, 4096, 12288, 36, 32, 8], False, 8_190_735_360),
    "Qwen/Qwen3-14B": (QWEN3, [151936, 5120, 17408, 40, 40, 8], False, 14_768_307_200),
    "Qwen/Qwen3-32B": (QWEN3, [151936, 5120, 25600, 64, 64, 8], False, 32_762_123_264),
    "meta-llama/Llama-3.1-8B-Instruct": (
        {"model_type": "llama"}, [128256, 4096, 14336, 32, 32, 8], False, 8_030_261_248,
    ),
}  # fmt: skip
TRAINED_FROM = {  # published checkpoints
    "dongguanting/Qwen2.5-7B-ARPO": "Qwen/Qwen2.5-7B-Instruct",
    "dongguanting/Qwen3-14B-ARPO-DeepSearch": "Qwen/Qwen3-14B",
}
PLANNED = [name for name, entry in LISTED.items() if entry.hardware]


@cache
def resolved_of(name: str) -> Resolved:
    listed = LISTED[name]
    own = [] if listed.model else ["model.path="]
    return compose([f"experiment={name}", *own], job=listed.job)


def config_of(name: str) -> Config:
    return resolved_of(name).config


def extras(config: Config) -> list[str]:
    """Of the core, beside `train`."""
    chosen = {
        "vllm": config.engine.name == "vllm",
        "openai": config.rollout_step.name in ("function", "command", "external"),  # the gateway needs aiohttp
        "ray": config.cluster.name == "ray",
        "lora": config.policy.lora_rank > 0 or config.sft.lora_rank > 0,
        "deepspeed": config.sft.strategy not in (Strategy.NONE, Strategy.FSDP),
    }
    return sorted(extra for extra, is_needed in chosen.items() if is_needed)


def distributions(name: str) -> set[str]:
    """Of everything that the recipe chooses, beside the core."""
    kinds = {group.name: group.kind for group in COMPONENTS if group.kind is not None}
    chosen = {("benchmarks", benchmark) for benchmark in LISTED[name].choices.get("benchmarks", [])}
    for key, settings in resolved_of(name).components.items():
        group, _, entry = key.partition(".")
        chosen.add((group, (settings.use or entry) if entry else settings.name))
    registries = load_plugins().registries
    made = (getattr(registries, kinds[group]).get(each) for group, each in chosen if group in kinds)
    return {component.distribution for component in made} - {"ramet"}


@pytest.mark.parametrize("name", LISTED)
def test_what_a_recipe_needs_is_what_it_chooses(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    core, *others = LISTED[name].needs
    config = config_of(name)
    assert core == f"ramet[{','.join(['train', *extras(config)])}]"
    named = {need.partition("[")[0] for need in others}  # they may name extras
    brought = {re.split(r"[^\w-]", required)[0] for need in named for required in requires(need) or []}
    assert named <= distributions(name) <= named | brought


@pytest.mark.parametrize("name", LISTED)
def test_a_recipe_begins_with_one_line_about_it(name: str) -> None:
    package, description, needs = LISTED[name].text.splitlines()[:3]
    assert (package, needs.partition(":")[0]) == ("# @package _global_", "# Needs")
    assert description.startswith("# ") and description.endswith(".")


@pytest.mark.parametrize("name", LISTED)
def test_what_is_listed_of_a_recipe_is_what_composes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list reads files alone, so that it needs no plugin."""
    monkeypatch.chdir(tmp_path)
    listed = LISTED[name]
    config = config_of(name)
    assert listed.model == config.model.path
    data = {"train": config.data.train, "sft": config.sft.data, "eval": list(config.benchmarks)}[listed.job]
    assert list(listed.data) == data != []
    assert check(resolved_of(name), listed.job) == []


@pytest.mark.parametrize(("name", "engine"), [("arpo_qwen2.5_7b_reasoning", "torch"), ("eval_aime", "openai")])
def test_another_engine_than_that_of_a_recipe_has_its_own_options(name: str, engine: str) -> None:
    composed = compose([f"experiment={name}", f"engine={engine}"], job=LISTED[name].job).config
    assert composed.engine == compose([f"engine={engine}", "model.path=m"], job="eval").config.engine
    assert replace(composed, engine=config_of(name).engine) == config_of(name)
    with pytest.raises(ConfigErrors, match="gpu_memory_utilization"):
        compose([f"experiment={name}", f"engine={engine}", "engine.params.gpu_memory_utilization=0.5"], job="eval")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with `config.json` alone, by the name of the model."""
    made = {}
    for number, (name, (kind, sizes, tied, _)) in enumerate(MODELS.items()):
        made[name] = tmp_path_factory.mktemp(f"model{number}")
        facts = {**kind, **dict(zip(SIZES, sizes, strict=True)), "tie_word_embeddings": tied}
        (made[name] / "config.json").write_text(json.dumps(facts))
    return made


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_the_table_has_as_many_parameters_as_its_page_says(name: str, folders: dict[str, Path]) -> None:
    config = compose([f"model.path={folders[name]}"], job="train").config
    assert read_shape(config.model).n_parameters == MODELS[name][-1]


@pytest.mark.parametrize("name", PLANNED)
def test_a_recipe_fits_the_hardware_that_it_names(name: str, folders: dict[str, Path]) -> None:
    listed = LISTED[name]
    folder = folders[TRAINED_FROM.get(listed.model, listed.model)]
    config = replace(config_of(name), model=replace(config_of(name).model, path=str(folder)))
    lines = table(planned(config, listed.job, listed.hardware)[1])
    (verdict,) = [line for line in lines if line.startswith("the largest need of a device: ")]
    assert "little is left" not in verdict, verdict


@cache
def timed(name: str, folder: Path) -> StepTime | str:
    """The estimate of a recipe's step, on GPUs of the memory that it names."""
    listed = LISTED[name]
    config = replace(config_of(name), model=replace(config_of(name).model, path=str(folder)))
    _, memory = planned(config, listed.job, listed.hardware)
    assert isinstance(memory, MemoryPlan)
    machine = replace(memory.inputs.machine, gpu="RTX4090" if listed.hardware.endswith("24GB") else "H100")
    return step_time(replace(memory, inputs=replace(memory.inputs, machine=machine)), Expected())


TRAINED = [name for name in PLANNED if LISTED[name].job == "train"]


@pytest.mark.parametrize("name", TRAINED)
def test_the_plan_of_a_recipe_says_its_steps_seconds(name: str, folders: dict[str, Path]) -> None:
    time = timed(name, folders[TRAINED_FROM.get(LISTED[name].model, LISTED[name].model)])
    assert isinstance(time, StepTime), time
    assert 20 < time.seconds < 1000 and all(seconds >= 0 for seconds in time.phases.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TRAINED if not name.endswith("_release")])  # with other rewards
def test_no_setting_beside_a_recipes_is_faster_by_the_plan(name: str, folders: dict[str, Path]) -> None:
    """Of those that fit, by 2 % of a step and more. What alters learning, and how many programs the processors of a
    machine bear, is for its user to choose.
    """
    time = timed(name, folders[TRAINED_FROM.get(LISTED[name].model, LISTED[name].model)])
    assert isinstance(time, StepTime), time
    walked = {change.key for change in time_changes(time)}
    assert {"policy.max_microbatch_tokens", "policy.activation_checkpointing", "policy.offload", "engine.params.slots",
            "engine.params.gpu_memory_utilization", "rollout.max_concurrent"} <= walked  # fmt: skip
    found = [gain for gain in gains(time, Expected()) if not gain.change.key.startswith((LEARNED, "tools."))]
    assert [str(gain) for gain in found] == []


def test_the_page_has_every_recipe_with_its_hardware() -> None:
    rows = dict(re.findall(r"^\| `([\w.]+)` \|.*\| ([^|]+?) \|$", PAGE, re.MULTILINE))
    assert {name: shown for name, shown in rows.items() if shown != "a CPU"} == {
        name: LISTED[name].hardware for name in PLANNED
    }
    assert rows.keys() == LISTED.keys()


def test_every_name_of_the_hub_stands_in_the_table_of_its_source() -> None:
    named = {name for entry in LISTED.values() for name in hub_names(entry)}
    rows = dict(re.findall(r"^\| `([\w.-]+/[\w.-]+)` \| (.+?) \|$", PAGE, re.MULTILINE))
    assert rows.keys() == named
    assert all(re.search(r"seed 00\d|arpo\.md|its page", source) for source in rows.values())


def hub_names(listed: Recipe) -> set[str]:
    sets = (source.removeprefix("hf://datasets/") for source in listed.data if source.startswith("hf://"))
    names = {"/".join(source.split("/")[:2]) for source in sets}
    return names | ({listed.model} if re.fullmatch(r"[\w.-]+/[\w.-]+", listed.model) else set())


def test_an_editable_install_finds_the_folder_of_the_repository() -> None:
    """Of the one that is installed: these tests may be those of a copy (`scripts/test_without_shared.sh`)."""
    assert shipped_recipes() == Path(ramet.__file__).parents[3] / "hydra_configs"
