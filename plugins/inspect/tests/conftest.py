"""Sessions of a gateway, served as the gateway's own tests do; they run where the repository is."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module with `serve_one` and `LARGE`."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    return importlib.import_module("core.tests.rollout.gateway.conftest")
