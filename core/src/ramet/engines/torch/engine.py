"""The asyncio face of the built-in engine: checks requests, sends commands to the compute thread, awaits replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from ramet.engines.config import TorchEngineConfig
from ramet.engines.protocol import Capability, Completion, EngineInfo, FirstReport, Request
from ramet.engines.torch.batcher import Batcher
from ramet.engines.torch.cache import round_up
from ramet.engines.torch.compute import Compute
from ramet.engines.torch.counters import Counters
from ramet.engines.torch.forward import Forward
from ramet.engines.torch.probe import check_rows_agree
from ramet.engines.torch.worker import Abort, Close, Release, Ticket, Update, Worker
from ramet.errors import InfraError
from ramet.models.encoder import Encoder


class TorchEngine:
    """Continuous batching over a static KV cache (`ramet.engines.protocol.Engine`). Owns `model`.

    With `deterministic`, a request's numbers depend on its own history alone: its prompt, seed, and the turns of its
    cache key and its parent's. For that a key keeps its slot until it is released, so `slots` must be at least the
    number of rollouts under way at once, and a parent may be released only after its forks have started.
    """

    def __init__(
        self,
        config: TorchEngineConfig,
        *,
        model: PreTrainedModel,
        encoder: Encoder,
        max_tokens: int,
        deterministic: bool = False,
    ) -> None:
        """Raises `ConfigError` for a model that this engine would compute wrongly."""
        model.train(False)
        model.requires_grad_(False)
        lanes = round_up(config.slots) if deterministic else config.slots
        forward = Forward(model, slots=lanes, max_tokens=config.max_tokens or max_tokens)
        if deterministic:
            check_rows_agree(forward, lanes)
        capabilities = {Capability.ENTROPY, Capability.SEEDS, Capability.WEIGHT_UPDATE}
        if deterministic:
            capabilities.add(Capability.DETERMINISTIC)
        self.info = EngineInfo(
            name="torch",
            capabilities=frozenset(capabilities),
            vocab_size=forward.vocab_size,
            max_tokens=forward.max_tokens,
        )
        self._counters = Counters()
        self._batcher = Batcher(
            Compute(forward, deterministic=deterministic),
            encoder,
            self._counters,
            slots=config.slots,
            max_tokens=forward.max_tokens,
            prefill_tokens=config.prefill_tokens,
        )
        self._under_way: set[str] = set()
        self._closed = False
        self._worker = Worker(self._batcher, model)

    @property
    def policy_version(self) -> int:
        return self._batcher.version

    async def generate(self, request: Request, on_first: Callable[[FirstReport], None] | None = None) -> Completion:
        """Sample one turn. Cancelling it aborts the request."""
        self._check(request)
        self._check_open()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        self._under_way.add(request.id)
        self._worker.send(Ticket(request, loop, future, on_first))
        try:
            return await future
        finally:
            self._under_way.discard(request.id)
            if not future.done() or future.cancelled() or future.exception() is not None:
                self._worker.send(Abort(request.id))

    def abort(self, request_id: str) -> None:
        self._worker.send(Abort(request_id))

    def release(self, cache_keys: Sequence[str]) -> None:
        self._worker.send(Release(tuple(cache_keys)))

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Raises `ValueError`, and changes nothing, if names or shapes do not fit the model."""
        self._check_open()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._worker.send(Update(list(weights), version, loop, future))
        await future

    def metrics(self) -> Mapping[str, float]:
        return self._counters.take()

    async def close(self) -> None:
        """Fail what is under way with `InfraError` and end the compute thread."""
        self._closed = True
        self._worker.send(Close())
        await asyncio.to_thread(self._worker.join)

    def _check_open(self) -> None:
        if self._closed:
            raise InfraError("the torch engine was closed")

    def _check(self, request: Request) -> None:
        tokens, sampling = np.frombuffer(request.token_ids, dtype=np.int32), request.sampling
        limit, vocab = self.info.max_tokens, self.info.vocab_size
        problems = []
        if request.id in self._under_way:
            problems.append("its id is under way already")
        if not len(tokens):
            problems.append("it has no tokens")
        elif tokens.min() < 0 or tokens.max() >= vocab:
            problems.append(f"its token ids reach from {tokens.min()} to {tokens.max()}; allowed: 0 to {vocab - 1}")
        if sampling.max_tokens < 1 or len(tokens) + sampling.max_tokens > limit:
            problems.append(
                f"{len(tokens)} prompt tokens and max_tokens={sampling.max_tokens} do not fit: allowed are at least 1 "
                f"sampled token and {limit} tokens in all"
            )
        if not sampling.temperature >= 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
            problems.append(
                f"temperature={sampling.temperature}, top_p={sampling.top_p}, top_k={sampling.top_k}; allowed: "
                "temperature >= 0, 0 < top_p <= 1, top_k >= 0"
            )
        if "" in sampling.stop:
            problems.append("a stop string is empty")
        if request.first_tokens < 1:
            problems.append(f"first_tokens={request.first_tokens}; allowed: at least 1")
        if problems:
            raise ValueError(f"request {request.id!r} cannot be served: {'; '.join(problems)}")
