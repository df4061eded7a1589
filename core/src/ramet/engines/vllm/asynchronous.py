"""The engine `vllm` over several devices: vLLM's AsyncLLM, whose workers are processes, one for each part of the model.

AsyncLLM lives on a loop in a thread (`bridge`), where `service` uses it; here is what callers see. Run on CPUs only so
far, with one and with two workers; never on a GPU.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ramet.config.schema import ModelConfig
from ramet.engines.config import VllmEngineConfig
from ramet.engines.counters import Counters
from ramet.engines.protocol import Completion, FirstReport, Request
from ramet.engines.requests import check_request
from ramet.engines.vllm.bridge import Bridge, post
from ramet.engines.vllm.engine import check_temperature, check_vllm, vllm_info, without_weights
from ramet.engines.vllm.environment import prepare_environment
from ramet.engines.weights import check_weights
from ramet.errors import InfraError, raise_all
from ramet.models.encoder import Encoder
from ramet.models.loading import resolve_device

if TYPE_CHECKING:
    from ramet.engines.vllm.service import Service  # imports vLLM, which reads the environment then


class VllmAsyncEngine:
    """vLLM in processes of its own (`ramet.engines.protocol.Engine`, `ramet.engines.sleeping.Sleeper`)."""

    def __init__(
        self, config: VllmEngineConfig, *, model: ModelConfig, encoder: Encoder, max_tokens: int, colocate: bool = False
    ) -> None:
        """`colocate`: the devices are shared with the trainer, so it must be able to sleep. Raises `ConfigError`."""
        raise_all(check_vllm(model, config))
        self._shapes = without_weights(model)
        self._config = config
        self._model = model
        self._encoder = encoder
        self._counters = Counters()
        self._under_way: set[str] = set()
        self._closed = False
        self.info = vllm_info(self._shapes, config.max_tokens or max_tokens)
        self._bridge = Bridge("ramet-vllm-engine")
        try:
            self._service = self._bridge.start(self._launch(colocate=colocate)).result()
        except BaseException:
            self._bridge.stop()
            raise

    @property
    def policy_version(self) -> int:
        return self._service.version

    async def generate(self, request: Request, on_first: Callable[[FirstReport], None] | None = None) -> Completion:
        """Sample one turn. Cancelling it aborts the request."""
        check_request(request, self.info, self._under_way)
        check_temperature(request)
        self._check_open()
        loop = asyncio.get_running_loop()
        errors: list[Exception] = []

        def tell(report: FirstReport) -> None:
            try:
                if on_first is not None:
                    on_first(report)
            except Exception as error:  # the caller's own: this raises it
                errors.append(error)
                work.cancel()

        self._under_way.add(request.id)
        work = self._bridge.start(self._service.serve(request, lambda report: post(loop, partial(tell, report))))
        try:
            completion = await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            if not errors:
                raise
        finally:
            self._under_way.discard(request.id)
        if errors:
            raise errors[0]
        return completion

    def abort(self, request_id: str) -> None:
        if not self._closed:
            self._bridge.start(self._service.abort(request_id))

    def release(self, cache_keys: Sequence[str]) -> None:
        """vLLM finds prefixes by their content and drops the least recently used: keys mean nothing to it."""

    async def update_weights(
        self, weights: Iterable[tuple[str, Tensor]], version: int, *, in_flight: bool = False
    ) -> None:
        """Raises `ValueError`, and changes nothing, if names or shapes do not fit the model.

        With another `transfer` than `host`, weights come by `receive_weights` (`RuntimeError`).
        """
        if self._config.transfer != "host":
            raise RuntimeError(f"engine.params.transfer={self._config.transfer}: weights come by receive_weights")
        given = list(weights)
        check_weights(self._shapes, given)
        await self._ask(self._service.update(given, version, in_flight=in_flight))

    async def connect_weights(self, info: Mapping[str, Any]) -> None:
        """Introduce vLLM's workers to who will send weights (`init_info` of the backend that `transfer` names)."""
        await self._ask(self._service.connect(info))

    async def receive_weights(
        self, infos: Iterable[Mapping[str, Any]], version: int, *, in_flight: bool = False
    ) -> None:
        """As `update_weights`, from a sender that holds the weights elsewhere; names and shapes are not checked.

        `infos`: what it tells the workers (`update_info` of the backend), in order; all together are the whole model.
        """
        await self._ask(self._service.receive(infos, version, in_flight=in_flight))

    async def pause(self) -> None:
        await self._ask(self._service.pause())

    async def resume(self) -> None:
        await self._ask(self._service.resume())

    async def sleep(self) -> None:
        await self._ask(self._service.sleep())

    async def wake(self) -> None:
        await self._ask(self._service.wake())

    def metrics(self) -> Mapping[str, float]:
        return self._counters.take()

    async def close(self) -> None:
        """Fail what is under way with `InfraError`, and end vLLM's processes and the thread."""
        if not self._closed:
            self._closed = True
            await asyncio.wrap_future(self._bridge.start(self._end()))
            await asyncio.to_thread(self._bridge.stop)

    async def _end(self) -> None:
        self._service.end()

    async def _launch(self, *, colocate: bool) -> Service:
        cpu = resolve_device(self._model).type == "cpu"
        prepare_environment(cpu=cpu)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of vLLM, about its own code
            from ramet.engines.vllm.launch import launch_async  # vLLM reads the environment when it is imported
            from ramet.engines.vllm.service import Service

        can_sleep = colocate and not cpu
        llm = await launch_async(
            self._config, model=self._model, max_tokens=self.info.max_tokens, cpu=cpu, can_sleep=can_sleep
        )
        service = Service(
            llm,
            encoder=self._encoder,
            counters=self._counters,
            timeout_s=self._config.timeout_s,
            can_sleep=can_sleep,
        )
        if self._config.transfer == "host":
            await service.connect({})
        return service

    async def _ask(self, work: Coroutine[Any, Any, None]) -> None:
        """Not cancelled with its caller: what has begun on the workers is finished."""
        if self._closed:
            work.close()
        self._check_open()
        await asyncio.shield(asyncio.wrap_future(self._bridge.start(work)))

    def _check_open(self) -> None:
        if self._closed:
            raise InfraError("the vllm engine was closed")
