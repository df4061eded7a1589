"""Configurations and manifests of small runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ramet.config.resolved import Resolved
from ramet.config.schema import Config
from ramet.runs.manifest import DataRecord, Manifest, make_manifest


@pytest.fixture
def resolved() -> Callable[..., Resolved]:
    """Makes a configuration as `config.yaml` has it."""

    def make(text: str = "run:\n  seed: 1\n", *, allow: bool = False) -> Resolved:
        config = Config()
        config.run.allow_config_change = allow
        return Resolved(job="train", config=config, text=text, overrides=["run.seed=1"], set_by_user=frozenset())

    return make


@pytest.fixture
def manifest(resolved: Callable[..., Resolved]) -> Callable[..., Manifest]:
    """Makes a manifest that differs where it is told to."""

    def make(data: str = "d", model: str | None = "m" * 12, plugin: str = "1.0", tasks: int = 3) -> Manifest:
        made = make_manifest(
            resolved(), data={"train": DataRecord(files=["a.jsonl"], fingerprint=data, tasks=tasks)}, model=model
        )
        made.plugins[0].version = plugin
        return made

    return make
