from __future__ import annotations

from pathlib import Path

import pytest

from ramet.cli import main
from ramet.config.hydra_adapter import group_options
from ramet.config.presets import presets


def test_every_preset_names_its_paper_its_difference_and_its_use():
    listed = presets()
    assert {preset.name for preset in listed} == set(group_options(["algorithm"])["algorithm"])
    assert [preset.name for preset in listed if not (preset.paper and preset.differs and preset.use)] == []
    assert all("arXiv" in preset.paper for preset in listed)


def test_the_list_begins_with_grpo_and_fits_a_screen(capsys: pytest.CaptureFixture[str]):
    assert main(["algorithms"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("algorithm=grpo  — ramet\n  paper    DeepSeekMath, arXiv 2402.03300\n")
    assert "\nalgorithm=dapo  — ramet\n" in out
    assert max(map(len, out.splitlines())) <= 100


def test_one_preset_is_printed_with_its_keys_and_its_file(capsys: pytest.CaptureFixture[str]):
    assert main(["algorithms", "dapo"]) == 0
    out = capsys.readouterr().out
    assert "policy_loss=ppo_single_clip" in out and "policy_loss.params.clip_high=0.28" in out
    assert "minibatches: 16  # §4.1" in out
    assert main(["algorithms", "DAPO"]) == 1
    assert "no 'DAPO'. Did you mean 'dapo'?" in capsys.readouterr().err


def test_a_preset_of_ones_own_needs_no_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "algorithm").mkdir()
    (tmp_path / "algorithm/mine.yaml").write_text(
        "# @package _global_\n# Differs: one\n#   and two\ntrain:\n  epochs: 2\n"
    )
    assert main(["algorithms", "mine", "--config-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["algorithm=mine  — --config-dir", "  differs  one and two", "  sets     train.epochs=2"]
