from __future__ import annotations

import dataclasses
import logging
import typing
from importlib.metadata import EntryPoint
from importlib.resources import files
from pathlib import Path

import pytest

from ramet.algorithms.losses.config import PpoClipConfig
from ramet.config.compose import compose
from ramet.config.hydra_adapter import group_options
from ramet.config.keys import JOBS
from ramet.config.schema import Config, LossAggregation, OldLogprobs, ToolConfig
from ramet.engines.config import TorchEngineConfig
from ramet.errors import ConfigError, ConfigErrors
from ramet.rollout.config import NoBranchConfig, RandomBranchConfig

MODEL = "model.path=some/model"


def test_defaults_compose_to_dataclasses_with_typed_options():
    config = compose([MODEL], job="train").config
    assert config.model.path == "some/model"
    assert config.engine.params == TorchEngineConfig()
    assert config.policy_loss.params == PpoClipConfig()
    assert (config.branch_policy.name, config.branch_policy.params) == ("none", NoBranchConfig())
    assert config.tools == {}


def test_a_chosen_tool_takes_settings_of_the_core_and_options_of_its_plugin():
    overrides = [MODEL, "tools=[python,echo]", "tools.python.params.memory_mb=3", "tools.python.timeout_s=3"]
    tools = compose(overrides, job="train").config.tools
    assert tools["echo"] == ToolConfig(params=None)
    assert (tools["python"].timeout_s, tools["python"].params.memory_mb) == (3.0, 3)
    assert type(tools["python"].params).__name__ == "PythonOptions"


def test_one_tool_needs_no_brackets_and_the_last_choice_wins():
    tools = compose([MODEL, "tools=[echo]", "tools=python"], job="train").config.tools
    assert list(tools) == ["python"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("x.jsonl", ["x.jsonl"]),
        ("'with spaces, and a comma.jsonl'", ["with spaces, and a comma.jsonl"]),
        ("benchmark:gsm8k/train", ["benchmark:gsm8k/train"]),
        ("7", ["7"]),
        ("[a,b]", ["a", "b"]),
    ],
)
def test_one_text_for_a_key_that_takes_a_list_is_a_list_of_one(typed: str, expected: list[str]):
    assert compose([MODEL, f"data.train={typed}"], job="train").config.data.train == expected


def test_a_list_that_may_be_null_stays_null_and_takes_one_text_too():
    def sources(typed: str) -> list[str] | None:
        chosen = [MODEL, "tools=python", "rewards=environment", f"rewards.environment.sources={typed}"]
        return compose(chosen, job="train").config.rewards["environment"].sources

    assert (sources("null"), sources("math")) == (None, ["math"])


def test_a_dict_that_is_null_takes_one_and_then_single_entries():
    overrides = [MODEL, "advantage=gdpo", "advantage.params.weights={a: 1}", "advantage.params.weights.b=2"]
    assert compose(overrides, job="train").config.advantage.params.weights == {"a": 1.0, "b": 2.0}
    with pytest.raises(ConfigErrors, match=r"advantage\.params\.weights: Value 'x'"):
        compose([MODEL, "advantage=gdpo", "advantage.params.weights={a: x}"], job="train")


def test_enums_of_core_and_plugins_are_written_by_value():
    overrides = [MODEL, "train.loss_aggregation=seq-mean-token-sum", "train.old_logprobs=ENGINE", "tools=[python]",
                 "tools.python.params.level=very-high"]  # fmt: skip
    resolved = compose(overrides, job="train")
    assert resolved.config.train.loss_aggregation is LossAggregation.SEQ_MEAN_TOKEN_SUM
    assert resolved.config.train.old_logprobs is OldLogprobs.ENGINE
    assert resolved.config.tools["python"].params.level == "very-high"
    assert "loss_aggregation: seq-mean-token-sum" in resolved.text
    assert "level: very-high" in resolved.text


def test_the_record_keeps_overrides_and_what_the_user_set():
    resolved = compose([MODEL, "+branch_policy=random", "++train.steps=3"], job="train")
    assert resolved.overrides == [MODEL, "+branch_policy=random", "++train.steps=3"]
    assert resolved.set_by_user == {"model.path", "branch_policy", "train.steps"}
    assert isinstance(resolved.config.branch_policy.params, RandomBranchConfig)


def test_the_text_holds_exactly_the_sections_of_the_job():
    from omegaconf import OmegaConf

    for job, needed in (("train", []), ("sft", []), ("eval", ["benchmarks=[arithmetic]"])):
        text = compose([MODEL, *needed], job=job).text
        assert set(OmegaConf.create(text)) == set(JOBS[job])


def test_the_preset_grpo_composes_and_its_parts_can_be_replaced():
    config = compose([MODEL, "algorithm=grpo", "branch_policy=random"], job="train").config
    assert (config.advantage.name, config.policy_loss.name, config.branch_policy.name) == ("grpo", "ppo_clip", "random")


def test_an_experiment_of_the_working_directory_sets_choices_and_values_for_several_jobs(workdir: Path):
    write(workdir / "hydra_configs/experiment/demo.yaml", EXPERIMENT)
    train = compose([MODEL, "experiment=demo"], job="train").config
    assert (train.branch_policy.name, train.tools["python"].params.memory_mb) == ("random", 7)
    assert train.train.loss_aggregation is LossAggregation.SEQ_MEAN_TOKEN_MEAN
    assert compose([MODEL, "experiment=demo"], job="sft").config.sft.lr == 1e-3
    assert compose([MODEL, "experiment=demo", "train.steps=9"], job="train").config.train.steps == 9


def test_a_directory_named_on_the_command_line_is_searched_too(tmp_path: Path):
    write(tmp_path / "more presets/experiment/mine.yaml", "# @package _global_\ntrain:\n  steps: 4\n")
    found = compose([MODEL, "experiment=mine"], job="train", config_dir=tmp_path / "more presets")
    assert found.config.train.steps == 4
    with pytest.raises(ConfigError, match="no directory"):
        compose([MODEL], job="train", config_dir=tmp_path / "nowhere")


def test_presets_of_plugins_are_found_by_their_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "site/h5_extra/__init__.py", "")
    write(tmp_path / "site/h5_extra/conf/__init__.py", "")
    write(tmp_path / "site/h5_extra/conf/algorithm/extra.yaml", "# @package _global_\ntrain:\n  steps: 11\n")
    points = [
        EntryPoint("extra", "h5_extra.conf", "ramet.conf"),
        EntryPoint("gone", "no_such_package.conf", "ramet.conf"),
    ]
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr("ramet.config.hydra_adapter.entry_points", lambda group: points)
    assert compose([MODEL, "algorithm=extra"], job="train").config.train.steps == 11
    monkeypatch.setenv("RAMET_BLOCK_PLUGINS", "extra")
    own = {path.name[:-5] for path in files("ramet.conf.algorithm").iterdir() if path.name.endswith(".yaml")}
    assert group_options(["algorithm"]) == {"algorithm": sorted(own)}


def test_named_options_of_a_tool_keep_their_types(workdir: Path):
    write(
        workdir / "hydra_configs/tools/python_slow.yaml",
        "defaults:\n  - python\n  - _self_\npython:\n  timeout_s: 99\n",
    )
    tools = compose([MODEL, "tools=[python_slow]", "tools.python.retries=5"], job="train").config.tools
    assert (tools["python"].timeout_s, tools["python"].retries, tools["python"].params.memory_mb) == (99.0, 5, 512)


def test_options_given_by_a_preset_without_the_group_are_typed_all_the_same(workdir: Path):
    body = "# @package _global_\ntools:\n  python:\n    params: {memory_mb: 9}\n"
    write(workdir / "hydra_configs/experiment/direct.yaml", body)
    resolved = compose([MODEL, "experiment=direct"], job="train")
    assert resolved.config.tools["python"].params.memory_mb == 9
    assert "modules: []" in resolved.text


def test_values_of_the_environment_reach_the_job_and_never_the_record(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    overrides = [MODEL, "tools=[search]", "tools.search.params.key=${oc.env:SECRET_KEY}",
                 "data.train=['${tools.search.params.key}/x']"]  # fmt: skip
    resolved = compose(overrides, job="train")
    assert resolved.config.tools["search"].params.key == "hunter2"
    assert resolved.config.data.train == ["hunter2/x"]
    assert "hunter2" not in resolved.text
    assert "${oc.env:SECRET_KEY}" in resolved.text


def test_ordinary_interpolations_are_resolved_in_the_record():
    resolved = compose([MODEL, "model.tokenizer=${model.path}"], job="train")
    assert resolved.config.model.tokenizer == "some/model"
    assert "tokenizer: some/model" in resolved.text


def test_composing_leaves_directory_and_logging_alone(workdir: Path):
    handlers, level = list(logging.root.handlers), logging.root.level
    compose([MODEL], job="train")
    assert list(workdir.iterdir()) == []
    assert (list(logging.root.handlers), logging.root.level) == (handlers, level)


def test_a_recipe_without_a_model_serves_jobs_that_need_none(tmp_path: Path):
    write(tmp_path / "experiment/mine.yaml", "# @package _global_\ntrain:\n  steps: 4\n")
    for job in ("data", "judge", "tool", "doctor"):
        assert compose(["experiment=mine"], job=job, config_dir=tmp_path).config.model.path == ""
    with pytest.raises(ConfigErrors, match=r"model\.path: missing"):
        compose(["experiment=mine"], job="train", config_dir=tmp_path)


def test_the_core_has_at_most_150_keys():
    def leaves(cls: type) -> int:
        hints = typing.get_type_hints(cls)
        nested = [hints[f.name] for f in dataclasses.fields(cls)]
        return sum(leaves(one) if dataclasses.is_dataclass(one) else 1 for one in nested)

    assert 50 < leaves(Config) <= 150


def test_every_section_of_a_job_is_a_section_of_the_schema():
    sections = {field.name for field in dataclasses.fields(Config)}
    assert all(set(names) <= sections for names in JOBS.values())
    assert sections == {name for names in JOBS.values() for name in names}


EXPERIMENT = """# @package _global_
defaults:
  - override /algorithm: grpo
  - override /branch_policy: random
  - override /tools: [python]
train:
  steps: 7
  loss_aggregation: seq-mean-token-mean
tools:
  python:
    params:
      memory_mb: 7
sft:
  lr: 1e-3
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_a_cluster_is_chosen_like_a_component_and_its_keys_are_in_its_section(workdir: Path):
    config = compose([MODEL, "cluster=ray", "cluster.policy_workers=2"], job="train").config.cluster
    assert (config.name, config.policy_workers, config.rollout_workers) == ("ray", 2, 1)
    assert compose([MODEL], job="train").config.cluster.name == "local"
    with pytest.raises(ConfigErrors, match=r"cluster: no 'moon'\. Available: local, ray"):
        compose([MODEL, "cluster=moon"], job="train")


@pytest.mark.parametrize("model", [MODEL, "model={path: m}"])
def test_only_the_command_line_lets_a_models_code_run(workdir: Path, model: str):
    write(workdir / "hydra_configs/experiment/shared.yaml", "# @package _global_\nmodel:\n  trust_remote_code: true\n")
    with pytest.raises(ConfigErrors) as caught:
        compose([model, "experiment=shared"], job="train")
    assert caught.value.problems == [
        "model.trust_remote_code: a file that is passed on may not let code run; read the model's code, and set "
        "model.trust_remote_code=true on the command line"
    ]
    given = "model.trust_remote_code=true"
    assert compose([model, "experiment=shared", given], job="train").config.model.trust_remote_code
    assert not compose(
        [model, "experiment=shared", "model.trust_remote_code=false"], job="data"
    ).config.model.trust_remote_code
