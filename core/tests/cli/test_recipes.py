"""`ramet recipes` as a user meets it."""

from __future__ import annotations

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


def test_the_users_own_is_told_apart(
    folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folders)
    assert main(["recipes"]) == 0
    mine = folders / "hydra_configs/experiment/one.yaml"
    assert capsys.readouterr().out.startswith(f"experiment=one\n  from: {mine}, not that of ramet\n\nexperiment=two\n")


def test_one_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "one"]) == 0
    assert capsys.readouterr().out == TEXT
    assert main(["recipes", "onne"]) == 1
    assert capsys.readouterr().err == "error: no recipe 'onne'. Did you mean 'one'? Recipes: one, two\n"
