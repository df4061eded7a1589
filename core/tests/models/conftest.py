"""A tiny model folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.models.tiny import make_tiny_model


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str = "model") -> Path:
        return make_tiny_model(tmp_path / name, hidden=16, layers=1, heads=2, intermediate=16)

    return make
