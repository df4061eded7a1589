"""The engine `vllm`: what can be checked without vLLM, and the asyncio face over the thread that owns it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ramet.config.schema import ModelConfig
from ramet.engines.config import VllmEngineConfig
from ramet.engines.counters import Counters
from ramet.engines.protocol import Capability, Completion, EngineInfo, FirstReport, Request
from ramet.engines.threaded import ThreadedEngine
from ramet.engines.vllm.environment import prepare_environment
from ramet.engines.worker import Batcher
from ramet.errors import ConfigError, raise_all
from ramet.models.encoder import Encoder
from ramet.models.loading import resolve_device

MIN_TEMPERATURE = 0.01  # vLLM raises lower ones to it, silently for the caller
INSTALL = (
    'on a GPU host: pip install "ramet[vllm]"; without a GPU, from a checkout: pip install -r requirements-vllm-cpu.txt'
)


def check_vllm(model: ModelConfig) -> list[str]:
    """Problems of this machine with this engine, without importing vLLM."""
    problems = []
    if find_spec("vllm") is None:
        problems.append(f"engine=vllm: vLLM is not installed; {INSTALL}")
    if model.device.startswith("cuda:"):
        problems.append(
            f"model.device={model.device}: the engine vllm takes the first visible GPU; set model.device=cuda and "
            "choose it by CUDA_VISIBLE_DEVICES"
        )
    return problems


class VllmEngine(ThreadedEngine):
    """vLLM in this process (`ramet.engines.protocol.Engine`). At most one lives in a process at a time."""

    def __init__(self, config: VllmEngineConfig, *, model: ModelConfig, encoder: Encoder, max_tokens: int) -> None:
        """Raises `ConfigError`."""
        raise_all(check_vllm(model))
        cpu = resolve_device(model).type == "cpu"
        limit = config.max_tokens or max_tokens
        shapes = _without_weights(model)
        counters = Counters()

        @contextmanager
        def build() -> Iterator[Batcher]:
            prepare_environment(cpu=cpu)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of vLLM, about its own code
                from ramet.engines.vllm.batcher import VllmBatcher  # vLLM reads the environment when it is imported
                from ramet.engines.vllm.launch import launched

            with launched(config, model=model, max_tokens=limit, cpu=cpu) as (engine, probe):
                yield VllmBatcher(engine, probe, shapes=shapes, encoder=encoder, counters=counters)

        info = EngineInfo(
            name="vllm",
            capabilities=frozenset({Capability.ENTROPY, Capability.SEEDS, Capability.WEIGHT_UPDATE}),
            vocab_size=shapes.config.vocab_size,
            max_tokens=limit,
        )
        super().__init__(info, counters, build)

    async def generate(self, request: Request, on_first: Callable[[FirstReport], None] | None = None) -> Completion:
        """Sample one turn. Cancelling it aborts the request."""
        if 0 < request.sampling.temperature < MIN_TEMPERATURE:
            raise ValueError(
                f"request {request.id!r} cannot be served: temperature={request.sampling.temperature}; allowed: 0 and "
                f"at least {MIN_TEMPERATURE}"
            )
        return await super().generate(request, on_first)


def _without_weights(model: ModelConfig) -> PreTrainedModel:
    """The model with names and shapes alone. Raises `ConfigError`."""
    try:
        config = AutoConfig.from_pretrained(
            model.path, local_files_only=True, trust_remote_code=model.trust_remote_code
        )
        with torch.device("meta"):
            shapes: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, trust_remote_code=model.trust_remote_code
            )
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"model.path: transformers cannot read the model in {model.path!r}: {error}") from error
    return shapes
