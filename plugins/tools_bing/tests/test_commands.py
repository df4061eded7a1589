"""The commands that this package adds: `ramet cache` and `ramet corpus`."""

from __future__ import annotations

import pytest

from ramet.cli import main


@pytest.mark.parametrize("command", ["cache", "corpus"])
def test_a_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: ramet {command} ")
