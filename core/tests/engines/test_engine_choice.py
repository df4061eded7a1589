"""Which engine a configuration means, and what it will be able to do, known before anything starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from engine_subject import EngineUnderTest

from ramet.components import engines
from ramet.components.engines import build_engine, engine_capabilities
from ramet.config.schema import ClusterConfig, ComponentConfig, Config, RunConfig
from ramet.engines.config import TorchEngineConfig, VllmEngineConfig
from ramet.engines.protocol import Capability
from ramet.engines.vllm import VllmEngine
from ramet.errors import ConfigError
from ramet.models.encoder import Encoder


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


def test_vllm_measures_entropies_and_is_not_deterministic() -> None:
    able = engine_capabilities(config("vllm", VllmEngineConfig(), deterministic=True))
    assert Capability.ENTROPY in able and Capability.DETERMINISTIC not in able


def test_vllm_is_told_whether_it_shares_its_devices(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[dict[str, Any]] = []
    monkeypatch.setattr(engines, VllmEngine.__name__, lambda params, **options: built.append(options))
    build_engine(config("vllm", VllmEngineConfig(), colocate=True), encoder)
    [options] = built
    assert options["colocate"]


def test_an_unknown_engine_is_refused(encoder: Encoder) -> None:
    for use in (engine_capabilities, lambda chosen: build_engine(chosen, encoder)):
        with pytest.raises(ConfigError, match=r"no engine named 'abacus'\. Installed: openai, torch, vllm"):
            use(config("abacus", None))
