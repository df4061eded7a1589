"""The examples of `ramet train|sft|eval --help`, which name rewards and benchmarks of plugins."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ramet.cli import main
from ramet.cli.common_keys import COMMON, EXAMPLES


@pytest.mark.parametrize("job", COMMON)
def test_an_example_composes(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = shlex.split(" ".join(EXAMPLES[job]).replace("\\", ""))
    assert command[:2] == ["ramet", job] and command[-1] == "--dry-run"
    assert main([*command[1:-1], "--cfg", "job"]) == 0
    assert "model.path:" not in capsys.readouterr().out
