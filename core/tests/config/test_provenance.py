"""`ramet config --why KEY`: everything that set a value, in order, with its file or plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.cli import main
from ramet.config.compose import layers
from ramet.errors import ConfigError, ConfigErrors

EXPERIMENT = """# @package _global_
defaults:
  - override /algorithm: grpo
  - override /branch_policy: random
  - override /tools: [python, search]

train:
  steps: 30
run:
  root: ${oc.env:RAMET_TEST_ROOT}
tools:
  python:
    timeout_s: 9
    params:
      modules: [math, re]
"""


@pytest.fixture(autouse=True)
def experiment(workdir: Path) -> Path:
    path = workdir / "hydra_configs/experiment/demo.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(EXPERIMENT)
    return path


def why(key: str, *overrides: str) -> list[tuple[str, str, str]]:
    found = layers(["experiment=demo", *overrides], job="train").origins(key)
    return [(origin.kind, origin.value, origin.where) for origin in found]


def test_a_value_shows_its_default_its_experiment_and_the_command_line(workdir: Path):
    where = f"experiment/demo in file://{workdir}/hydra_configs"
    assert why("train.steps", "train.steps=1", "train.steps=3") == [
        ("default", "null", "the core's schema"), ("experiment", "30", where), ("command line", "3", "train.steps=3"),
    ]  # fmt: skip
    assert why("rollout.group_size") == [("default", "8", "the core's schema")]
    assert why("trackers") == [("default", "[console,jsonl]", "the core's schema")]


def test_an_option_shows_the_plugin_that_declares_it(workdir: Path):
    assert why("tools.python.params.memory_mb")[0] == ("default", "512", "tools/python of tools_python (dist)")
    assert [value for _, value, _ in why("tools.python.params.modules")] == ["[]", "[math,re]"]
    assert [value for _, value, _ in why("tools.python.timeout_s")] == ["60.0", "9"]
    assert why("tools.python.params.level", "+tools.python.params.level=very-high")[-1][:2] == (
        "command line", "very-high",
    )  # fmt: skip


def test_an_option_of_a_component_that_a_file_names_is_its_default(workdir: Path):
    (workdir / "hydra_configs/experiment/demo.yaml").write_text(
        "# @package _global_\ntools:\n  python: {params: {memory_mb: 7}}\n"
    )
    assert why("tools.python.params.memory_mb")[0][1] == "7"
    assert why("tools.python.params.level") == [("default", "very-low", "options of tools.python")]


def test_a_choice_names_who_made_it(workdir: Path):
    where = f"experiment/demo in file://{workdir}/hydra_configs"
    assert why("branch_policy") == [("experiment", "random", where)]
    assert why("branch_policy", "branch_policy=none") == [("command line", "none", "branch_policy=none")]
    assert why("advantage") == [("preset", "grpo", "algorithm/grpo in pkg://ramet.conf")]
    assert why("engine") == [("choice", "torch", "config in pkg://ramet.conf")]
    assert why("tools") == [("experiment", "python, search", where)]
    assert why("algorithm") == [("experiment", "grpo", where)]
    assert why("experiment") == [("command line", "demo", "experiment=demo")]
    assert why("rewards") == [("choice", "none", "config in pkg://ramet.conf")]


def test_values_from_the_environment_are_not_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAMET_TEST_ROOT", "a-secret")
    assert why("run.root")[-1][1] == "${oc.env:RAMET_TEST_ROOT}"


def test_a_key_that_there_is_not_is_refused():
    for key, message in (
        ("train.step", "train.step: no such key. Did you mean 'train.steps'?"),
        ("train", "train: is a section; ask for one of its keys, as in train.steps"),
        ("tools.echo.timeout_s", "'echo' is not chosen"),
    ):
        with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
            why(key)
    with pytest.raises(ConfigErrors, match=r"^policy\.lr: .*'fast'"):
        why("train.steps", "policy.lr=fast")
    with pytest.raises(ConfigErrors, match="branch_policy: no 'arpoo'"):
        why("train.steps", "branch_policy=arpoo")


def test_the_command_prints_the_way_to_a_value_and_needs_no_model(capsys: pytest.CaptureFixture[str]):
    assert main(["config", "--why", "policy.lr", "policy.lr=1e-4"]) == 0
    assert capsys.readouterr().out == (
        "policy.lr = 1e-4\n  default       1e-06  the core's schema\n  command line  1e-4   policy.lr=1e-4\n"
    )


def test_the_command_prints_the_configuration_of_a_job(capsys: pytest.CaptureFixture[str]):
    assert main(["config", "model.path=m", "train.steps=3"]) == 0
    assert "steps: 3" in capsys.readouterr().out
    assert main(["config", "--job", "sft", "model.path=m"]) == 0
    out = capsys.readouterr().out
    assert "sft:" in out and "train:" not in out
    assert main(["config"]) == 1
    assert "model.path: missing" in capsys.readouterr().err
