"""The engines that `engine=NAME` can choose, and how each is built from a run's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ramet.config.schema import Config
from ramet.engines.protocol import Engine
from ramet.engines.torch import TorchEngine
from ramet.engines.vllm import VllmEngine, check_vllm
from ramet.errors import ConfigError
from ramet.models.encoder import Encoder
from ramet.models.loading import load_model


def check_engine(config: Config) -> list[str]:
    """Problems of this machine with the chosen engine, without building it."""
    return check_vllm(config.model) if config.engine.name == "vllm" else []


def build_engine(config: Config, encoder: Encoder) -> Engine:
    """The engine that `engine.name` says, with a private copy of the model. Raises `ConfigError`."""
    build = _ENGINES.get(config.engine.name)
    if build is None:
        raise ConfigError(f"engine: no engine named {config.engine.name!r}. Installed: {', '.join(_ENGINES)}.")
    return build(config, encoder)


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


def _vllm(config: Config, encoder: Encoder) -> Engine:
    return VllmEngine(config.engine.params, model=config.model, encoder=encoder, max_tokens=max_sequence_tokens(config))


_ENGINES: Mapping[str, Callable[[Config, Encoder], Engine]] = {"torch": _torch, "vllm": _vllm}
