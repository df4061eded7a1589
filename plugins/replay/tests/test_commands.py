"""The commands are the package's, and say what they need before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.cli import main
from ramet.plugins.extensions import COMMANDS, extension


@pytest.mark.parametrize("name", ["credit", "test"])
def test_help_needs_no_torch_and_the_command_is_of_this_package(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert extension(COMMANDS, name, ()).distribution == "ramet-replay"
    assert main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: ramet {name} RUN")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["credit"], "credit: give one run"),
        (["credit", "a", "b"], "credit: give one run"),
        (["credit", "gone"], "no run 'gone'"),
        (["test"], "test: name a run"),
        (["test", "gone"], "no run 'gone'"),
        (["test", "gone", "--tools", "some"], "--tools"),
    ],
)
def test_a_run_is_named(
    arguments: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    assert problem in capsys.readouterr().err
