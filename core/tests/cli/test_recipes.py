"""`ramet recipes` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet.cli import main
from ramet.config import hydra_adapter

TEXT = "# @package _global_\n# Shows how.\n# Needs: ramet no-such-package\ntrain:\n  steps: 3\n"


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shipped = tmp_path / "shipped"
    for folder, name, text in (
        (shipped, "one", TEXT),
        (shipped, "two", "# Needs: ramet\n"),
        (tmp_path / "hydra_configs", "one", "x: 1\n"),
    ):
        (folder / "experiment").mkdir(parents=True, exist_ok=True)
        (folder / "experiment" / f"{name}.yaml").write_text(text)
    monkeypatch.setattr(hydra_adapter, "shipped_recipes", lambda: shipped)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def test_the_list_says_what_each_is_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    assert (
        capsys.readouterr().out
        == """experiment=one
  Shows how.
  needs: ramet no-such-package
  not installed: no-such-package

experiment=two
  needs: ramet
  all of it is installed
"""
    )


def test_the_list_says_what_a_recipe_names(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "# Trains.\n# Hardware: 2x8x80GiB\n# Reproduces: a table\nmodel: {path: A/B}\ndata: {train: [a, b]}\n"
    (folders / "shipped/experiment/one.yaml").write_text(text)
    assert main(["recipes"]) == 0
    shown = "experiment=one\n  Trains.\n  reproduces: a table\n  model: A/B\n  data: a, b\n  hardware: 2x8x80GiB\n\n"
    assert capsys.readouterr().out.startswith(shown)


def test_a_plan_of_a_recipe_needs_config_json_alone(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="ramet[train] is not installed")
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    (folders / "elsewhere/config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 320, **sizes}))
    text = "# @package _global_\nmodel: {path: .}\ndata: {train: ['hf://datasets/A/B/c.jsonl']}\n"
    (folders / "shipped/experiment/one.yaml").write_text(text)
    assert main(["recipes", "one", "--on", "1x24GiB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cluster local: engine torch and the policy in this process, on cuda"
    assert lines[-2].startswith("the largest need of a device: ") and lines[-2].endswith(" of 24.0 GiB")
    assert lines[-1].startswith("not estimated: no speed is known of these GPUs")
    assert main(["recipes", "one", "--on", "1xRTX4090"]) == 0
    assert "estimated, seconds of a step on 1xRTX4090; no run was measured (docs/plan.md)" in capsys.readouterr().out
    assert main(["recipes", "one", "--on", "1x300MiB"]) == 1
    assert capsys.readouterr().err.startswith("error: memory: cuda 0 (policy and engine) would need ")
    (folders / "elsewhere/config.json").write_text(json.dumps({"model_type": "qwen3_moe", "num_experts": 2, **sizes}))
    assert main(["recipes", "one", "--on", "1x24GiB"]) == 1
    assert "error: model.path: the model (qwen3_moe) is a mixture of experts, and those" in capsys.readouterr().err
    assert main(["recipes", "--on", "1x24GiB"]) == 1
    assert capsys.readouterr().err == "error: --on 1x24GiB: plans one recipe; give its NAME\n"


def test_the_users_own_is_told_apart(
    folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folders)
    assert main(["recipes"]) == 0
    mine = folders / "hydra_configs/experiment/one.yaml"
    assert capsys.readouterr().out.startswith(
        f"experiment=one\n  from: {mine}, not the one of ramet\n\nexperiment=two\n"
    )


def test_one_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "one"]) == 0
    assert capsys.readouterr().out == TEXT
    assert main(["recipes", "onne"]) == 1
    assert capsys.readouterr().err == "error: no recipe 'onne'. Did you mean 'one'? Recipes: one, two\n"
