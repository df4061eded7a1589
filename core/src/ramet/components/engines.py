"""The engines that `engine=NAME` can choose, and how each is built from a run's configuration.

`builtin` registers their builders by name, with their options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ramet.config.schema import Config
from ramet.engines.config import OpenAIEngineConfig, TorchEngineConfig, VllmEngineConfig
from ramet.engines.openai import CAPABILITIES as OPENAI
from ramet.engines.openai import OpenAIEngine, check_servers
from ramet.engines.protocol import Capability, Engine
from ramet.engines.torch import TorchEngine
from ramet.engines.vllm import VllmEngine, capabilities, check_vllm
from ramet.models.attention import check_attention
from ramet.models.check import read_config
from ramet.models.encoder import Encoder
from ramet.models.loading import device_kind, load_model
from ramet.plugins import load_plugins

# As `TorchEngine` declares (a test compares them).
TORCH = frozenset({Capability.ENTROPY, Capability.SEEDS, Capability.WEIGHT_UPDATE, Capability.TOP_LOGPROBS})


class EngineBuilder(Protocol):
    """The engine that the registry makes from a name and options."""

    loads_weights: bool  # of `model.path`; False: the engine is elsewhere

    def check(self, config: Config) -> list[str]:
        """Problems of this machine with the engine, without building it."""
        ...

    def capabilities(self, config: Config) -> frozenset[Capability]:
        """The engine's capabilities, without building it."""
        ...

    def build(self, config: Config, encoder: Encoder) -> Engine:
        """The engine, with a private copy of the model."""
        ...


@dataclass(frozen=True, slots=True)
class TorchBuilder:
    params: TorchEngineConfig
    loads_weights = True

    def check(self, config: Config) -> list[str]:
        """Check `model.attention`: the engine has its own attention, but loads the model with the configured one."""
        device = None if config.cluster.address is not None else device_kind(config.model)
        return check_attention(config.model, device=device, described=read_config(config.model))

    def capabilities(self, config: Config) -> frozenset[Capability]:
        return TORCH | {Capability.DETERMINISTIC} if config.run.deterministic else TORCH

    def build(self, config: Config, encoder: Encoder) -> Engine:
        return TorchEngine(
            self.params,
            model=load_model(config.model),
            encoder=encoder,
            max_tokens=max_sequence_tokens(config),
            deterministic=config.run.deterministic,
            in_flight=config.train.staleness > 0,
        )


@dataclass(frozen=True, slots=True)
class VllmBuilder:
    params: VllmEngineConfig
    loads_weights = True

    def check(self, config: Config) -> list[str]:
        return check_vllm(config.model, self.params, here=config.cluster.address is None)

    def capabilities(self, config: Config) -> frozenset[Capability]:
        return capabilities(self.params)

    def build(self, config: Config, encoder: Encoder) -> Engine:
        return VllmEngine(
            self.params,
            model=config.model,
            encoder=encoder,
            max_tokens=max_sequence_tokens(config),
            colocate=config.cluster.colocate,
            in_flight=config.train.staleness > 0,
        )


@dataclass(frozen=True, slots=True)
class OpenAIBuilder:
    params: OpenAIEngineConfig
    loads_weights = False

    def check(self, config: Config) -> list[str]:
        return check_servers(self.params)

    def capabilities(self, config: Config) -> frozenset[Capability]:
        return OPENAI

    def build(self, config: Config, encoder: Encoder) -> Engine:
        return OpenAIEngine(self.params, encoder=encoder, max_tokens=max_sequence_tokens(config))


def check_engine(config: Config) -> list[str]:
    """Problems of this machine with the chosen engine, without building it. Raises `ConfigError`, as all of these."""
    return _builder(config).check(config)


def loads_weights(config: Config) -> bool:
    """Whether the chosen engine needs the weights of `model.path` on this machine."""
    return _builder(config).loads_weights


def engine_capabilities(config: Config) -> frozenset[Capability]:
    """The chosen engine's capabilities, without building it."""
    return _builder(config).capabilities(config)


def build_engine(config: Config, encoder: Encoder) -> Engine:
    """The engine that `engine.name` says, with a private copy of the model."""
    return _builder(config).build(config, encoder)


def max_sequence_tokens(config: Config) -> int:
    """Prompt and response of one rollout."""
    return config.data.max_prompt_tokens + config.rollout.max_response_tokens


def _builder(config: Config) -> EngineBuilder:
    built: EngineBuilder = load_plugins().engines.get(config.engine.name).build(config.engine.params)
    return built
