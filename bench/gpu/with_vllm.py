"""One policy rank and one engine vllm on one GPU, in the order of a co-located run: start, rollouts, sleep, update, new
weights by each transport, wake, rollouts by the new weights, and whether their log-probabilities are the trainer's.

The rank is in this process, and vLLM's worker in another, as with `cluster=ray`. On a CPU shared memory and gloo stand
for `ipc` and `nccl`.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
from array import array
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import torch
from rows import sampled_rows
from sizes import Size

from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.cluster.ray.weight_senders import Broadcaster, stream
from ramet.config.schema import ModelConfig, PolicyConfig, TrainConfig
from ramet.engines.config import VllmEngineConfig
from ramet.engines.protocol import Completion, Request, Sampling
from ramet.engines.vllm import VllmEngine
from ramet.engines.weight_chunks import CHUNK_BYTES
from ramet.models.encoder import Encoder
from ramet.models.loading import load_tokenizer
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import PolicySpec

Write = Callable[[str, str], None]
SHARE = 0.4  # of the GPU, for the engine; the rank stays on it
MOST_APART = 0.05  # nats, mean: bfloat16 in two implementations


def check_vllm(size: Size, model: ModelConfig, write: Write, *, sync_check: bool) -> None:
    """Writes a row for each stage. Raises if numbers are wrong; with `sync_check` vLLM does at each wait for the GPU
    that it knows of, and only rollouts are played.
    """
    if sync_check:
        os.environ["VLLM_GPU_SYNC_CHECK"] = "error"
    try:
        asyncio.run(Check(size, model, write).run(sync_check=sync_check))
    finally:
        os.environ.pop("VLLM_GPU_SYNC_CHECK", None)


class Check:
    def __init__(self, size: Size, model: ModelConfig, write: Write) -> None:
        self._size = size
        self._model = model
        self._write = write
        self._device = torch.device(model.device)
        self._cuda = self._device.type == "cuda"
        rng = np.random.default_rng(2)
        self._prompts = [rng.integers(0, size.shape["vocab_size"], size.prompt).astype(np.int32) for _ in range(2)]
        self._requests = 0

    async def run(self, *, sync_check: bool) -> None:
        # Random weights are small: this is a step that no engine with the old ones agrees with.
        spec = PolicySpec(
            model=self._model, policy=PolicyConfig(lr=1e-3), train=TrainConfig(), policy_loss=PpoClip(PpoClipConfig()),
            temperature=1.0, max_response_tokens=self._size.sampled, total_steps=10, seed=1,
        )  # fmt: skip
        self._policy = PolicyRank(spec)
        self._policy.rest()
        started = time.perf_counter()
        engine = self._start()
        try:
            self._write("vllm, start", f"{time.perf_counter() - started:.0f} s")
            played = await self._play(engine)
            if sync_check:
                await self._play(engine)
                self._write("vllm, waits for the GPU", "none (VLLM_GPU_SYNC_CHECK=error)")
                return
            transports: dict[str, Callable[[VllmEngine, int], Coroutine[Any, Any, None]]] = {
                "ipc": self._by_ipc, "host": self._by_host, "nccl": self._by_nccl
            }  # fmt: skip
            for version, (name, send) in enumerate(transports.items(), start=1):
                if name == "nccl" and self._cuda:
                    self._write("vllm, nccl", "needs a second GPU: NCCL takes each once")
                    continue
                played = await self._step(engine, played, name, send, version)
        finally:
            await engine.close()

    def _start(self) -> VllmEngine:
        options = VllmEngineConfig(
            slots=self._size.slots, gpu_memory_utilization=SHARE, kv_cache_bytes=None if self._cuda else 64 * 2**20
        )
        encoder = Encoder(load_tokenizer(self._model))
        tokens = self._size.prompt + self._size.sampled
        return VllmEngine(options, model=self._model, encoder=encoder, max_tokens=tokens, colocate=True)

    async def _play(self, engine: VllmEngine) -> list[Completion]:
        """Two rollouts of one turn, at once."""
        sampling = Sampling(temperature=1.0, max_tokens=self._size.sampled)
        self._requests += 1
        return list(
            await asyncio.gather(
                *(
                    engine.generate(
                        Request(
                            id=f"{self._requests}.{i}", token_ids=array("i", prompt.tolist()), sampling=sampling, seed=i
                        )
                    )
                    for i, prompt in enumerate(self._prompts)
                )
            )
        )

    async def _step(
        self,
        engine: VllmEngine,
        played: list[Completion],
        name: str,
        send: Callable[[VllmEngine, int], Coroutine[Any, Any, None]],
        version: int,
    ) -> list[Completion]:
        """What a step does after its rollouts, and the rollouts of the next. Returns those."""
        await engine.sleep()
        self._agree(played, "before it")
        rows = sampled_rows(self._prompts, played)
        advantages = torch.ones(len(rows), self._size.sampled)
        advantages[::2] *= -1
        self._policy.update(TrainBatch(rows=rows).with_advantages(advantages), version)
        self._policy.rest()
        await engine.wake_weights()
        started = time.perf_counter()
        await send(engine, version)
        seconds = time.perf_counter() - started
        self._policy.rest()
        await engine.wake()
        played = await self._play(engine)
        versions = {number for done in played for number in done.policy_versions}
        if versions != {version}:
            raise AssertionError(f"tokens after {name} are of the versions {versions}, not {version}")
        gap = self._agree(played, f"after {name}")
        size = sum(math.prod(shape) * dtype.itemsize for _, dtype, shape in self._policy.engine_shapes())
        self._policy.rest()
        self._write(f"vllm, {name}", f"{size / max(seconds, 1e-9) / 1e9:.2f} GB/s; against the trainer {gap:.1e} nats")
        return played

    def _agree(self, played: list[Completion], when: str) -> float:
        """Mean difference of log-probabilities, as `ramet check-logprobs` finds it."""
        rows = sampled_rows(self._prompts, played)
        found = np.concatenate(self._policy.logprobs(rows)) - np.concatenate([row.engine_logprobs for row in rows])
        gap = float(np.abs(found).mean())
        if not gap < MOST_APART:
            raise AssertionError(f"engine and trainer are {gap:.2e} nats apart {when}; allowed: {MOST_APART}")
        return gap

    async def _by_ipc(self, engine: VllmEngine, version: int) -> None:
        shapes = self._policy.engine_shapes()
        largest = max(math.prod(shape) * dtype.itemsize for _, dtype, shape in shapes)
        await engine.begin_update()
        for info in stream(self._policy.engine_weights(), writes=True, device=self._device, largest=largest):
            await engine.receive_chunk(info)
        await engine.finish_update(version)

    async def _by_host(self, engine: VllmEngine, version: int) -> None:
        await engine.update_weights([(name, one.cpu()) for name, one in self._policy.engine_weights()], version)

    async def _by_nccl(self, engine: VllmEngine, version: int) -> None:
        """By gloo."""
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        options = {
            "master_address": "127.0.0.1", "master_port": port, "world_size": 2, "timeout_s": 60.0,
            "packed_buffer_size_bytes": CHUNK_BYTES,
        }  # fmt: skip
        joining = asyncio.to_thread(Broadcaster, options, self._device)
        source = {"by": "gloo", "options": options | {"rank_offset": 1}}
        broadcaster, _ = await asyncio.gather(joining, engine.connect_weights(source))
        names, dtypes, shapes = zip(*self._policy.engine_shapes(), strict=True)
        told = {
            "names": list(names), "dtype_names": [str(dtype).removeprefix("torch.") for dtype in dtypes],
            "shapes": [list(shape) for shape in shapes], "limit": CHUNK_BYTES,
        }  # fmt: skip
        await engine.begin_update()
        sending = asyncio.to_thread(broadcaster.send, self._policy.engine_weights())
        await asyncio.gather(sending, engine.receive_chunk({"by": "gloo", "told": told}))
        await engine.finish_update(version)
