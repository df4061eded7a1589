"""The built-in engine: a model with its cache, and the asyncio side of the thread that computes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ramet.engines.checks import check_request
from ramet.engines.config import TorchEngineConfig
from ramet.engines.counters import Counters
from ramet.engines.protocol import Capability, Completion, EngineInfo, FirstReport, Request
from ramet.engines.torch.batcher import TorchBatcher
from ramet.engines.torch.cache import round_up
from ramet.engines.torch.engine_thread import Abort, Close, EngineThread, Generate, Release, Update
from ramet.engines.torch.forward import Forward
from ramet.engines.torch.model_runner import ModelRunner
from ramet.errors import ConfigError, InfraError
from ramet.models.encoder import Encoder

CHECKED_STEPS = 4


class TorchEngine:
    """Continuous batching over a static KV cache (`ramet.engines.protocol.Engine`). Owns `model`.

    With `deterministic`, a request's numbers depend only on its own history: its prompt, seed, and the turns of its
    cache key and its parent's. For that a key keeps its slot until it is released. So `slots` must be at least the
    number of rollouts that run at once, and a parent may be released only after its forks have started.
    """

    def __init__(
        self,
        config: TorchEngineConfig,
        *,
        model: PreTrainedModel,
        encoder: Encoder,
        max_tokens: int,
        deterministic: bool = False,
        in_flight: bool = False,
    ) -> None:
        """Raises `ConfigError` for a model that this engine would compute wrongly."""
        model.train(False)
        model.requires_grad_(False)
        rows = round_up(config.slots) if deterministic else config.slots
        forward = Forward(model, slots=rows, max_tokens=config.max_tokens or max_tokens, pack=not deterministic)
        if deterministic:
            _check_rows_agree(forward, rows)
        capabilities = {Capability.ENTROPY, Capability.SEEDS, Capability.WEIGHT_UPDATE, Capability.TOP_LOGPROBS}
        if deterministic:
            capabilities.add(Capability.DETERMINISTIC)
        self.info = EngineInfo(
            name="torch",
            capabilities=frozenset(capabilities),
            vocab_size=forward.vocab_size,
            max_tokens=forward.max_tokens,
        )
        self.in_flight = in_flight
        self._counters = Counters()
        self._running: set[str] = set()
        self._closed = False
        self._thread = EngineThread(
            TorchBatcher(
                ModelRunner(forward, deterministic=deterministic),
                encoder,
                self._counters,
                slots=config.slots,
                max_tokens=forward.max_tokens,
                prefill_tokens=config.prefill_tokens,
            )
        )

    @property
    def policy_version(self) -> int:
        return self._thread.version

    @property
    def failure(self) -> str | None:
        return self._thread.failure

    async def generate(self, request: Request, on_first: Callable[[FirstReport], None] | None = None) -> Completion:
        """Sample one turn. Cancelling it aborts the request."""
        check_request(request, self.info, self._running)
        self._check_open()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        self._running.add(request.id)
        self._counters.request_began()
        self._thread.send(Generate(request, loop, future, on_first))
        try:
            return await future
        finally:
            self._running.discard(request.id)
            self._counters.request_ended()
            if not future.done() or future.cancelled() or future.exception() is not None:
                self._thread.send(Abort(request.id))

    def abort(self, request_id: str) -> None:
        self._thread.send(Abort(request_id))

    def release(self, cache_keys: Sequence[str]) -> None:
        self._thread.send(Release(tuple(cache_keys)))

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Raises `ValueError`, and changes nothing, if names or shapes do not fit the model."""
        self._check_open()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._thread.send(Update(list(weights), version, self.in_flight, loop, future))
        await future

    def metrics(self) -> Mapping[str, float]:
        return self._counters.take()

    async def close(self) -> None:
        """Fail running requests with `InfraError` and end the thread."""
        self._closed = True
        self._thread.send(Close())
        await asyncio.to_thread(self._thread.join)

    def _check_open(self) -> None:
        if self._closed:
            raise InfraError("the torch engine was closed")


@torch.inference_mode()
def _check_rows_agree(forward: Forward, rows: int) -> None:
    """Check that a row gets the same bits wherever it is in a batch. Decodes the same tokens in every row.

    Matrix libraries compute the last rows of a product by other kernels when their number is not a multiple of the
    block size, and those may round differently. Deterministic engines pad to full blocks, and check their results
    first. Raises `ConfigError` if the logits are not the same bits.
    """
    slots = torch.arange(rows, device=forward.device)
    for step in range(CHECKED_STEPS):
        tokens = torch.full_like(slots, step * 7 % forward.vocab_size)
        positions = torch.full_like(slots, step)
        logits = forward.decode(tokens, positions, slots, slice(0, rows), forward.cache.length)  # [rows, V]
        if not torch.equal(logits, logits[:1].expand_as(logits)):
            raise ConfigError(
                f"run.deterministic: on this machine a row's numbers depend on its place in a batch of {rows}; try "
                "another engine.params.slots or run.threads=1"
            )
    forward.cache.zero()
