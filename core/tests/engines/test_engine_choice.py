"""Which engine a configuration means, and what it will be able to do, known before anything starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ramet.components import engines
from ramet.components.engines import build_engine, engine_capabilities
from ramet.config.schema import ClusterConfig, ComponentConfig, Config, RunConfig
from ramet.engines.config import TorchEngineConfig, VllmEngineConfig
from ramet.engines.protocol import Capability
from ramet.engines.vllm import VllmAsyncEngine, VllmEngine
from ramet.errors import ConfigError
from ramet.models.encoder import Encoder
from ramet.testing.engine_subject import EngineUnderTest


def config(name: str, params: object, *, deterministic: bool = False, colocate: bool = False) -> Config:
    return Config(
        engine=ComponentConfig(name=name, params=params),
        run=RunConfig(deterministic=deterministic),
        cluster=ClusterConfig(colocate=colocate),
    )


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_torch_engine_can_do_what_was_said_before_it_was_built(
    deterministic: bool, make_subject: Callable[..., EngineUnderTest]
) -> None:
    engine: Any = make_subject().make(deterministic=deterministic)
    chosen = config("torch", TorchEngineConfig(), deterministic=deterministic)
    assert engine_capabilities(chosen) == engine.info.capabilities
    asyncio.run(engine.close())


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_vllm_measures_entropies_and_is_not_deterministic(tensor_parallel: int) -> None:
    able = engine_capabilities(config("vllm", VllmEngineConfig(tensor_parallel=tensor_parallel), deterministic=True))
    assert Capability.ENTROPY in able and Capability.DETERMINISTIC not in able


@pytest.mark.parametrize(("tensor_parallel", "kind"), [(1, VllmEngine), (2, VllmAsyncEngine)])
def test_several_devices_mean_processes(
    tensor_parallel: int, kind: type, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[tuple[type, dict[str, Any]]] = []
    for one in (VllmEngine, VllmAsyncEngine):
        monkeypatch.setattr(engines, one.__name__, lambda params, one=one, **options: built.append((one, options)))
    build_engine(config("vllm", VllmEngineConfig(tensor_parallel=tensor_parallel), colocate=True), encoder)
    [(found, options)] = built
    assert found is kind and options["colocate"]


def test_an_unknown_engine_is_refused(encoder: Encoder) -> None:
    for use in (engine_capabilities, lambda chosen: build_engine(chosen, encoder)):
        with pytest.raises(ConfigError, match=r"no engine named 'abacus'\. Installed: torch, vllm"):
            use(config("abacus", None))
