"""The engines that `engine=NAME` can choose, and how each is built from a run's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ramet.config.schema import Config
from ramet.engines.protocol import Capability, Engine
from ramet.engines.torch import TorchEngine
from ramet.engines.vllm import CAPABILITIES, VllmAsyncEngine, VllmEngine, check_vllm
from ramet.errors import ConfigError
from ramet.models.encoder import Encoder
from ramet.models.loading import load_model

# As `TorchEngine` says of itself (a test holds them together).
TORCH = frozenset({Capability.ENTROPY, Capability.SEEDS, Capability.WEIGHT_UPDATE})


def check_engine(config: Config) -> list[str]:
    """Problems of this machine with the chosen engine, without building it."""
    if config.engine.name != "vllm":
        return []
    return check_vllm(config.model, config.engine.params)


def engine_capabilities(config: Config) -> frozenset[Capability]:
    """What the chosen engine will be able to do, without building it. Raises `ConfigError`."""
    return _kind(config).capabilities(config)


def build_engine(config: Config, encoder: Encoder) -> Engine:
    """The engine that `engine.name` says, with a private copy of the model. Raises `ConfigError`."""
    return _kind(config).build(config, encoder)


def max_sequence_tokens(config: Config) -> int:
    """Prompt and response of one rollout."""
    return config.data.max_prompt_tokens + config.rollout.max_response_tokens


def _torch(config: Config, encoder: Encoder) -> Engine:
    return TorchEngine(
        config.engine.params,
        model=load_model(config.model),
        encoder=encoder,
        max_tokens=max_sequence_tokens(config),
        deterministic=config.run.deterministic,
    )


def _torch_capabilities(config: Config) -> frozenset[Capability]:
    return TORCH | {Capability.DETERMINISTIC} if config.run.deterministic else TORCH


def _vllm(config: Config, encoder: Encoder) -> Engine:
    params = config.engine.params
    kind = VllmEngine if params.tensor_parallel == 1 else VllmAsyncEngine
    return kind(
        params,
        model=config.model,
        encoder=encoder,
        max_tokens=max_sequence_tokens(config),
        colocate=config.cluster.colocate,
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    build: Callable[[Config, Encoder], Engine]
    capabilities: Callable[[Config], frozenset[Capability]]


def _kind(config: Config) -> _Kind:
    kind = _ENGINES.get(config.engine.name)
    if kind is None:
        raise ConfigError(f"engine: no engine named {config.engine.name!r}. Installed: {', '.join(_ENGINES)}.")
    return kind


_ENGINES: Mapping[str, _Kind] = {
    "torch": _Kind(_torch, _torch_capabilities),
    "vllm": _Kind(_vllm, lambda _: CAPABILITIES),
}
