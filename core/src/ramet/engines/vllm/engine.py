"""The engine `vllm`: vLLM's AsyncLLM, whose scheduler and model run in separate processes, on 1 or more devices.

AsyncLLM itself needs an asyncio loop and gets one in a thread (`EventLoopThread`), where `service` uses it; here is
what callers see. Run on CPUs only so far, with one and with two workers; never on a GPU.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ramet.config.schema import ModelConfig
from ramet.engines.checks import check_request, check_weights
from ramet.engines.config import VllmEngineConfig
from ramet.engines.counters import Counters
from ramet.engines.protocol import Capability, Completion, EngineInfo, FirstReport, Request
from ramet.engines.vllm.environment import check_vllm, prepare_environment
from ramet.errors import ConfigError, InfraError, raise_all
from ramet.models.encoder import Encoder
from ramet.models.loading import resolve_device

if TYPE_CHECKING:
    from ramet.engines.vllm.service import VllmService  # imports vLLM, which reads the environment then

T = TypeVar("T")
MIN_TEMPERATURE = 0.01  # vLLM raises lower ones to it, silently for the caller
CAPABILITIES = frozenset({Capability.ENTROPY, Capability.WEIGHT_UPDATE, Capability.TOP_LOGPROBS})
logger = logging.getLogger(__name__)


def capabilities(config: VllmEngineConfig) -> frozenset[Capability]:
    """Return the capabilities of an engine with these options."""
    return CAPABILITIES | {Capability.SEEDS} if config.seeds else CAPABILITIES


class VllmEngine:
    """vLLM in separate processes (`ramet.engines.protocol.Engine` and `Sleeper`)."""

    def __init__(
        self,
        config: VllmEngineConfig,
        *,
        model: ModelConfig,
        encoder: Encoder,
        max_tokens: int,
        colocate: bool = False,
        in_flight: bool = False,
    ) -> None:
        """`colocate`: the devices are shared with the trainer, so it must be able to sleep. Raises `ConfigError`."""
        raise_all(check_vllm(model, config))
        self._shapes = _model_on_meta_device(model)
        self.in_flight = in_flight
        self._config = config
        self._model = model
        self._encoder = encoder
        self._counters = Counters()
        self._running: set[str] = set()
        self._closed = False
        self.info = EngineInfo(
            name="vllm",
            capabilities=capabilities(config),
            vocab_size=self._shapes.config.vocab_size,
            max_tokens=config.max_tokens or max_tokens,
        )
        self._loop = EventLoopThread("ramet-vllm-engine")
        try:
            self._service = self._loop.start(self._launch(colocate=colocate)).result()
        except BaseException:
            self._loop.stop()
            raise

    @property
    def policy_version(self) -> int:
        return self._service.version

    @property
    def failure(self) -> str | None:
        return self._service.failure

    async def generate(self, request: Request, on_first: Callable[[FirstReport], None] | None = None) -> Completion:
        """Sample one turn. Cancelling it aborts the request."""
        check_request(request, self.info, self._running)
        _check_temperature(request)
        self._check_open()
        loop = asyncio.get_running_loop()
        errors: list[Exception] = []

        def report_first(report: FirstReport) -> None:
            try:
                if on_first is not None:
                    on_first(report)
            except Exception as error:  # the caller's own: this raises it
                errors.append(error)
                work.cancel()

        self._running.add(request.id)
        self._counters.request_began()
        work = self._loop.start(self._service.serve(request, lambda report: _post(loop, partial(report_first, report))))
        try:
            completion = await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            if not errors:
                raise
        finally:
            self._running.discard(request.id)
            self._counters.request_ended()
        if errors:
            raise errors[0]
        return completion

    def abort(self, request_id: str) -> None:
        if not self._closed:
            self._loop.start(self._service.abort(request_id))

    def release(self, cache_keys: Sequence[str]) -> None:
        """vLLM finds prefixes by their content and drops the least recently used: keys mean nothing to it."""

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Raises `ValueError`, and changes nothing, if names or shapes do not fit the model."""
        named_tensors = list(weights)
        check_weights(self._shapes, named_tensors)
        await self._call(self._service.update(named_tensors, version, in_flight=self.in_flight))

    async def connect_weights(self, source: Mapping[str, Any]) -> None:
        """Let vLLM's workers join a broadcast of weights (`weight_transfer.TransferSource`)."""
        await self._call(self._service.connect(source))

    async def begin_update(self) -> None:
        """Begin an update by a sender that has the weights elsewhere; names and shapes are not checked.

        `receive_chunk` follows for the parts that the sender announces (`weight_transfer.Arriving`), together the
        complete model, and `finish_update`.
        """
        await self._call(self._service.begin_update(in_flight=self.in_flight))

    async def receive_chunk(self, info: Mapping[str, Any]) -> None:
        """Received and loaded when it returns."""
        await self._call(self._service.receive_chunk(info))

    async def finish_update(self, version: int) -> None:
        """Serve with the received weights."""
        await self._call(self._service.finish_update(version))

    async def sleep(self) -> None:
        await self._call(self._service.sleep())

    async def wake_weights(self) -> None:
        await self._call(self._service.wake_weights())

    async def wake(self) -> None:
        await self._call(self._service.wake())

    def metrics(self) -> Mapping[str, float]:
        return self._counters.take()

    async def close(self) -> None:
        """Fail running requests with `InfraError`, and end vLLM's processes and the thread."""
        if not self._closed:
            self._closed = True
            await asyncio.wrap_future(self._loop.start(self._end()))
            await asyncio.to_thread(self._loop.stop)

    async def _end(self) -> None:
        self._service.end()

    async def _launch(self, *, colocate: bool) -> VllmService:
        cpu = resolve_device(self._model).type == "cpu"
        prepare_environment(cpu=cpu)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of vLLM, about its own code
            from ramet.engines.vllm.launch import launch  # vLLM reads the environment when it is imported
            from ramet.engines.vllm.service import VllmService

        can_sleep = colocate and not cpu
        llm = await launch(
            self._config, model=self._model, max_tokens=self.info.max_tokens, cpu=cpu, can_sleep=can_sleep
        )
        service = VllmService(
            llm,
            encoder=self._encoder,
            counters=self._counters,
            timeout_s=self._config.timeout_s,
            can_sleep=can_sleep,
            seeds=self._config.seeds,
        )
        try:
            await service.record_sampling()
        except BaseException:
            service.end()
            raise
        return service

    async def _call(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for work that is not cancelled with its caller: what has begun on the workers is finished."""
        if self._closed:
            work.close()
        self._check_open()
        await asyncio.shield(asyncio.wrap_future(self._loop.start(work)))

    def _check_open(self) -> None:
        if self._closed:
            raise InfraError("the vllm engine was closed")


class EventLoopThread:
    """An asyncio loop in a separate thread, from construction until `stop`.

    vLLM continues to stream while the caller's loop is busy, and the engine may be used from one loop after another.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin this in the thread, in the order of these calls. To cancel the future is to cancel the work."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """Cancel the remaining tasks and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            self._loop.close()


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Call this on a loop of another thread."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:  # it was closed: no caller waits any more
        logger.debug("dropped an event of a closed loop")


def _check_temperature(request: Request) -> None:
    """Raise `ValueError` for one that vLLM would change."""
    if 0 < request.sampling.temperature < MIN_TEMPERATURE:
        raise ValueError(
            f"request {request.id!r} cannot be served: temperature={request.sampling.temperature}; allowed: 0 and "
            f"at least {MIN_TEMPERATURE}"
        )


def _model_on_meta_device(model: ModelConfig) -> PreTrainedModel:
    """The model with names and shapes of its weights, and no weights. Raises `ConfigError`."""
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
