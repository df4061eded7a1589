"""The engine `torch` on this device: sampled tokens per second, and its log-probabilities against the trainer's."""

from __future__ import annotations

import asyncio
import time
from array import array
from dataclasses import dataclass

import numpy as np
import torch
from rows import sampled_rows
from sizes import Size

from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.config.schema import ModelConfig, PolicyConfig, TrainConfig
from ramet.engines.config import TorchEngineConfig
from ramet.engines.protocol import Completion, Request, Sampling
from ramet.engines.torch import TorchEngine
from ramet.models.encoder import Encoder
from ramet.models.loading import load_model, load_tokenizer
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import PolicySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    tokens_per_s: float
    gap_mean: float  # |log-probability of the engine - that of the trainer|, nats
    gap_p99: float


def run_engine(size: Size, model: ModelConfig) -> Sampled:
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, size.shape["vocab_size"], size.prompt).astype(np.int32) for _ in range(size.slots)]
    engine = TorchEngine(
        TorchEngineConfig(slots=size.slots),
        model=load_model(model),
        encoder=Encoder(load_tokenizer(model)),
        max_tokens=size.prompt + size.sampled,
    )
    completions, seconds = asyncio.run(_play(engine, prompts, size.sampled))
    del engine
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    spec = PolicySpec(
        model=model, policy=PolicyConfig(), train=TrainConfig(), policy_loss=PpoClip(PpoClipConfig()), temperature=1.0,
        max_response_tokens=size.sampled, total_steps=1, seed=1,
    )  # fmt: skip
    rows = sampled_rows(prompts, completions)
    trained = PolicyRank(spec).logprobs(rows)
    gaps = np.abs(np.concatenate(trained) - np.concatenate([row.engine_logprobs for row in rows]))
    sampled = sum(len(done.token_ids) for done in completions)
    return Sampled(tokens_per_s=sampled / seconds, gap_mean=float(gaps.mean()), gap_p99=float(np.percentile(gaps, 99)))


async def _play(engine: TorchEngine, prompts: list[np.ndarray], sampled: int) -> tuple[list[Completion], float]:
    """All prompts at once, a first time to warm up."""

    def request(name: str, prompt: np.ndarray, tokens: int) -> Request:
        sampling = Sampling(temperature=1.0, max_tokens=tokens)
        return Request(id=name, token_ids=array("i", prompt.tolist()), sampling=sampling, seed=1)

    try:
        await asyncio.gather(*(engine.generate(request(f"warm{i}", p, 4)) for i, p in enumerate(prompts)))
        started = time.perf_counter()
        done = await asyncio.gather(*(engine.generate(request(str(i), p, sampled)) for i, p in enumerate(prompts)))
        return list(done), time.perf_counter() - started
    finally:
        await engine.close()
