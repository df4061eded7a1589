"""`ramet check-logprobs` with the torch engine: agreement, and the faults that it is there to find."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.check import logprobs
from ramet.check.logprobs import Options, run
from ramet.cli import main
from ramet.components.build import Components
from ramet.config.compose import compose
from ramet.config.schema import Config
from ramet.errors import ConfigErrors
from ramet.plugins import load_plugins
from ramet.policy.spec import PolicySpec

pytestmark = pytest.mark.skipif(
    "format" not in load_plugins().registries.rewards, reason="the plugin ramet-rewards is not installed"
)
Change = Callable[[PolicySpec], PolicySpec]


def train_with(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    original = logprobs.policy_spec

    def changed(config: Config, components: Components, total_steps: int) -> PolicySpec:
        return change(original(config, components, total_steps))

    monkeypatch.setattr(logprobs, "policy_spec", changed)


def test_the_torch_engine_agrees_and_nothing_is_written(
    overrides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["check-logprobs", *overrides, "rollout.temperature=0.8", "--tasks", "3", "--threshold", "1e-4"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert re.search(r"engine torch and trainer: \d+ sampled tokens of 6 rollouts", out)
    assert "they agree" in out and re.search(r"worst token: task tasks/\d, rollout \d, turn 0", out)
    assert not (tmp_path / "runs").exists()


def test_more_tasks_than_there_are_means_all_of_them(overrides: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(compose(overrides, job="train"), Options(tasks=100)) == 0
    assert "of 12 rollouts" in capsys.readouterr().out


def test_bfloat16_has_a_threshold_of_its_own(overrides: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(compose([*overrides, "model.dtype=bfloat16"], job="train")) == 0
    assert "99th percentile difference" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_trainer_at_another_temperature_is_found(
    dtype: str, overrides: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_with(lambda spec: replace(spec, temperature=0.8), monkeypatch)
    assert run(compose([*overrides, f"model.dtype={dtype}"], job="train")) == 1
    assert "THEY DISAGREE" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_weights_are_found(
    dtype: str,
    overrides: list[str],
    make_model: Callable[[int], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train_with(lambda spec: replace(spec, model=replace(spec.model, path=str(make_model(2)))), monkeypatch)
    assert run(compose([*overrides, f"model.dtype={dtype}"], job="train")) == 1
    assert "THEY DISAGREE" in capsys.readouterr().out


def test_no_reference_is_loaded_for_a_run_with_a_kl(overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet.policy.rank.reference_model", lambda spec: pytest.fail("a reference was loaded"))
    assert run(compose([*overrides, "train.kl_coef=0.1"], job="train"), Options(tasks=1)) == 0


def test_everything_wrong_is_reported_together(overrides: list[str], tmp_path: Path) -> None:
    wrong = [*overrides, f"model.path={tmp_path / 'absent'}", "train.tis_cap=-1"]
    with pytest.raises(ConfigErrors) as caught:
        run(compose(wrong, job="train"), Options(tasks=0, rollouts=1, threshold=float("nan")))
    text = "\n".join(caught.value.problems)
    assert all(part in text for part in ("--tasks 0", "--rollouts 1", "--threshold nan", "absent", "train.tis_cap=-1"))
