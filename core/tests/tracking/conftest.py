"""Trackers with their real packages: `wandb` offline, and TensorBoard's own reader."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Records = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture
def without_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user who has no key of W&B, whoever runs the tests."""
    for variable in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no_netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "no_settings"))


@pytest.fixture
def wandb_records() -> Records:
    """What W&B itself reads in a run's folder, of all attempts in order: its records as JSON."""

    def read(folder: Path) -> list[dict[str, Any]]:
        found = []
        for file in sorted(folder.glob("offline-run-*/*.wandb")):
            command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
            lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
            found += [json.loads(line) for line in lines]
        return found

    return read
