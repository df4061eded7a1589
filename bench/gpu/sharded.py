"""FSDP2 on one device: weights sharded over one rank and gathered in bfloat16, as every rank of a cluster does it.

With several ranks the policy worker computes so; alone it uses autocast. One rank shards nothing and so shows what the
path costs and whether it agrees, without a second device.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from rows import random_rows
from sizes import Size
from update import DENSE_BF16, synchronise, update_flops

from ramet.algorithms.logprobs import Entropy
from ramet.config.schema import ModelConfig, PolicyConfig
from ramet.models.loading import load_model
from ramet.planning.model_shape import read_shape
from ramet.policy.batching.packing import MicroBatch, micro_batches
from ramet.policy.distributed.ranks import join_ranks
from ramet.policy.distributed.sharding import reshard, shard
from ramet.policy.logprob_model import LogprobModel
from ramet.policy.models import attention_cost, blocks_of, compile_blocks
from ramet.policy.optim import clip_gradients, make_optimizer

BUDGET = 8192  # tokens of a micro-batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    tokens_per_s: float
    utilisation: float | None
    peak: int | None
    gap_p99: float  # |log-probability here - that of the unsharded bfloat16 model|, nats


def run_sharded(size: Size, config: ModelConfig, *, compiled: bool) -> Sharded:
    cuda, device = config.device == "cuda", torch.device(config.device)
    rows = random_rows(size.sequences, size.prompt, [size.response], size.shape["vocab_size"])
    plain = load_model(config)
    batches = [b.to(plain.device) for b in micro_batches(rows, budget=BUDGET, cost=attention_cost(plain, plain.device))]
    expected = _logprobs(LogprobModel(plain), batches[0])
    del plain
    join_ranks(rank=0, world_size=1, address=f"tcp://127.0.0.1:{_free_port()}", timeout_s=60)
    try:
        model = load_model(config, device=torch.device("cpu")).train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        if compiled:
            compile_blocks(model)
        scorer = LogprobModel(model)
        shard(scorer, blocks_of(model), device, master=torch.float32, compute=torch.bfloat16)
        gap = (_logprobs(scorer, batches[0]) - expected).abs()
        reshard(scorer)
        seconds = _seconds(scorer, batches, size.updates)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    flops = size.updates * len(rows) * update_flops(read_shape(config), size.tokens - 1, size.response)
    return Sharded(
        tokens_per_s=size.updates * len(rows) * (size.tokens - 1) / seconds,
        utilisation=flops / seconds / DENSE_BF16 if cuda else None,
        peak=torch.cuda.max_memory_allocated() if cuda else None,
        gap_p99=float(gap.quantile(0.99)),
    )


def _seconds(scorer: LogprobModel, batches: list[MicroBatch], updates: int) -> float:
    """Of `updates` updates over all micro-batches; one more before them is not timed."""
    optimizer = make_optimizer(scorer.parameters(), PolicyConfig())
    started = 0.0
    for i in range(updates + 1):
        if i == 1:
            synchronise()
            started = time.perf_counter()
        for batch in batches:
            scorer.token_logprobs(batch, 1.0, Entropy.DETACHED).logprobs.mean().backward()
        clip_gradients(scorer.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    synchronise()
    return time.perf_counter() - started


def _logprobs(scorer: LogprobModel, batch: MicroBatch) -> torch.Tensor:
    with torch.no_grad():
        return scorer.token_logprobs(batch, 1.0, Entropy.NONE).logprobs


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port
