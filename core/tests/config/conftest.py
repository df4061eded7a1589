"""Known plugins, independent of what is installed, and an empty working directory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from ramet import builtin
from ramet.errors import ConfigErrors
from ramet.plugins import PluginInfo, Plugins
from ramet.plugins.registry import Entry, Registries


class Level(StrEnum):
    LOW = "very-low"
    HIGH = "very-high"


@dataclass(kw_only=True, slots=True)
class PythonOptions:
    memory_mb: int = 512
    level: Level = Level.LOW
    modules: list[str] = field(default_factory=list)
    strict: bool = False

    def __post_init__(self) -> None:
        if self.memory_mb < 1:
            raise ValueError(f"memory_mb must be at least 1, got {self.memory_mb}")


@dataclass(kw_only=True, slots=True)
class SearchOptions:
    key: str  # required


@dataclass(kw_only=True, slots=True)
class UntypableOptions:
    callback: Callable[[], int] | None = None


def add(registries: Registries, kind: str, name: str, config: type[Any] | None, plugin: str) -> None:
    registry = getattr(registries, kind)
    registry.add(Entry(kind=registry.kind, name=name, factory=dict, config=config, plugin=plugin, distribution="dist"))


@pytest.fixture
def plugins() -> Plugins:
    registries = Registries()
    for kind, registry in registries:
        hook = getattr(builtin, f"register_{kind}", None)

        def register(name: str, factory: Any, *, config: Any = None, registry: Any = registry) -> None:
            registry.add(
                Entry(
                    kind=registry.kind, name=name, factory=factory, config=config, plugin="core", distribution="ramet"
                )
            )

        if hook is not None:
            hook(register)
    add(registries, "tools", "python", PythonOptions, "tools_python")
    add(registries, "tools", "search", SearchOptions, "tools_search")
    add(registries, "tools", "echo", None, "tools_echo")
    add(registries, "rewards", "math", None, "rewards")
    add(registries, "benchmarks", "arithmetic", None, "benchmarks")
    add(registries, "benchmarks", "untypable", UntypableOptions, "odd")
    broken = PluginInfo(
        name="brk", module="brk", distribution="brk-dist", version="1", broken="ImportError: no module x"
    )
    return Plugins(registries=registries, infos=[broken])


@pytest.fixture(autouse=True)
def workdir(plugins: Plugins, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The working directory."""
    monkeypatch.setattr("ramet.config.hydra_adapter.load_plugins", lambda: plugins)
    monkeypatch.setattr("ramet.config.hydra_adapter.shipped_recipes", lambda: None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def problems() -> Callable[..., list[str]]:
    """What composing reports."""
    from ramet.config.compose import compose

    def of(*overrides: str, job: str = "train", **options: Any) -> list[str]:
        with pytest.raises(ConfigErrors) as caught:
            compose(overrides, job=job, **options)
        return caught.value.problems

    return of
