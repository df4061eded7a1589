"""FSDP2 on one device: weights sharded over one rank and gathered in bfloat16, as every rank of a cluster does it.

With several ranks the policy worker computes so; alone it uses autocast. One rank shards nothing and so shows what the
path costs and whether it agrees, without a second device. The model is built as a run builds it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from first import one_rank
from rows import forked_rows, random_rows
from sizes import Size
from update import DENSE_BF16, synchronise, update_flops

from ramet.algorithms.logprobs import Entropy
from ramet.config.schema import (
    Attention,
    Config,
    DataConfig,
    ModelConfig,
    PolicyConfig,
    RolloutConfig,
    SharePrefixes,
    TrainConfig,
)
from ramet.models.loading import load_model
from ramet.planning.memory_policy import TrainedModel, phases
from ramet.planning.model_shape import read_shape
from ramet.policy.batching.packing import MicroBatch, micro_batches
from ramet.policy.batching.partition import RankLayout, own_shared_micro_batches
from ramet.policy.batching.rows import Row
from ramet.policy.batching.shared import unique_token_share
from ramet.policy.distributed.sharding import reshard
from ramet.policy.logprob_model import LogprobModel
from ramet.policy.models import attention_cost, build_trainable, row_cost
from ramet.policy.optim import clip_gradients, make_optimizer

BUDGET = 8192  # tokens of a micro-batch
GROUP_BUDGET = 18432  # in which a group's unique tokens fit
GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """How an update is computed. `groups`: rollouts with prompts and forks in common; else they share nothing."""

    attention: Attention = Attention.AUTO
    checkpointing: bool = True
    compiled: bool = False
    groups: bool = False
    share: bool = False
    compare: bool = False  # with the log-probabilities of the model that is not sharded

    @property
    def policy(self) -> PolicyConfig:
        return PolicyConfig(
            activation_checkpointing=self.checkpointing,
            compile=self.compiled,
            max_microbatch_tokens=GROUP_BUDGET if self.groups else BUDGET,
            share_prefixes=SharePrefixes.ALWAYS if self.share else SharePrefixes.NEVER,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    tokens_per_s: float  # of all rows, whatever is computed once
    utilisation: float | None  # None on a CPU, and where prefixes are computed once
    unique_share: float
    peak: int | None  # bytes that torch had given out at most; None on a CPU
    planned: int
    gap_p99: float | None  # |log-probability here - that of the unsharded bfloat16 model|, nats


def run_sharded(size: Size, config: ModelConfig, how: Pass) -> Sharded:
    cuda, device = config.device == "cuda", torch.device(config.device)
    config = replace(config, attention=how.attention)
    rows = _rows(size, how)
    expected = _unsharded(config, rows) if how.compare else None
    with one_rank():
        scorer = build_trainable(config, how.policy, LogprobModel, seed=1, world_size=2)
        batches = _batches(scorer, rows, how, device)
        gap = None
        if expected is not None:
            gap = float((_logprobs(scorer, batches[0]) - expected).abs().quantile(0.99))
            reshard(scorer)
        seconds = _seconds(scorer, batches, size.updates)
        peak = torch.cuda.max_memory_allocated() if cuda else None
    flops = size.updates * sum(
        update_flops(read_shape(config), row.n_tokens - 1, len(row.response_ids)) for row in rows
    )
    return Sharded(
        tokens_per_s=size.updates * sum(row.n_tokens - 1 for row in rows) / seconds,
        utilisation=flops / seconds / DENSE_BF16 if cuda and not how.share else None,
        unique_share=unique_token_share(rows),
        peak=peak,
        planned=_planned(size, config, how),
        gap_p99=gap,
    )


def _rows(size: Size, how: Pass) -> list[Row]:
    vocab = size.shape["vocab_size"]
    if how.groups:
        prompt = 3 * size.tokens // 8
        return forked_rows(size.sequences // GROUP or 1, GROUP, prompt, size.tokens - prompt, vocab)
    return random_rows(size.sequences, size.prompt, [size.response], vocab)


def _batches(scorer: LogprobModel, rows: Sequence[Row], how: Pass, device: torch.device) -> list[MicroBatch]:
    budget, model = how.policy.max_microbatch_tokens, scorer.model
    if how.share:
        alone = RankLayout(rank=0, world_size=1)
        found = own_shared_micro_batches(rows, alone, budget=budget, cost=row_cost(model, device))
    else:
        found = micro_batches(rows, budget=budget, cost=attention_cost(model, device))
    return [batch.to(device) for batch in found]


def _unsharded(config: ModelConfig, rows: Sequence[Row]) -> torch.Tensor:
    """Of the first micro-batch."""
    plain = LogprobModel(load_model(config))
    device = torch.device(config.device)
    return _logprobs(plain, micro_batches(rows, budget=BUDGET, cost=attention_cost(plain.model, device))[0].to(device))


def _seconds(scorer: LogprobModel, batches: list[MicroBatch], updates: int) -> float:
    """Of `updates` updates over all micro-batches; one more before them is not timed."""
    optimizer = make_optimizer(scorer.parameters(), PolicyConfig())
    started = 0.0
    for i in range(updates + 1):
        if i == 1:
            synchronise()
            started = time.perf_counter()
        for batch in batches:
            scorer(batch, 1.0, Entropy.DETACHED).logprobs.mean().backward()
        clip_gradients(scorer.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    synchronise()
    return time.perf_counter() - started


def _logprobs(scorer: LogprobModel, batch: MicroBatch) -> torch.Tensor:
    with torch.no_grad():
        return scorer(batch, 1.0, Entropy.NONE).logprobs


def _planned(size: Size, model: ModelConfig, how: Pass) -> int:
    """The plan of one rank that computes as one of several, and holds the whole model."""
    config = Config(
        model=model,
        policy=how.policy,
        data=DataConfig(max_prompt_tokens=size.prompt),
        rollout=RolloutConfig(group_size=GROUP if how.groups else size.sequences, max_response_tokens=size.response),
        train=TrainConfig(tasks_per_step=2 if how.groups else 1, minibatches=1),
    )
    side = TrainedModel(shape=read_shape(model), config=config, ranks=1, cuda=model.device == "cuda", alone=False)
    return max(sum(parts.values()) for parts in phases(side).values())
