"""The policy worker's update: tokens per second, model FLOPs utilisation, and its peak memory next to the plan's."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from rows import random_rows
from sizes import Size

from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.config.schema import Config, DataConfig, ModelConfig, PolicyConfig, RolloutConfig, TrainConfig
from ramet.planning.memory_policy import TrainedModel, phases
from ramet.planning.model_shape import ModelShape, read_shape
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import PolicySpec

DENSE_BF16 = 989e12  # FLOP/s of an H100 or H200, dense: https://www.nvidia.com/en-us/data-center/h200/
BUDGETS = (16384, 8192, 4096)  # tokens of a micro-batch, the first that fits is taken
ROOM = 0.9  # share of the free memory that the plan may fill


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    options: str
    budget: int
    tokens_per_s: float
    utilisation: float | None  # of DENSE_BF16; None on a CPU
    peak: int | None  # bytes that torch had given out at most; None on a CPU
    planned: int


def run_update(size: Size, model: ModelConfig, *, checkpointing: bool, compiled: bool) -> Updated | None:
    """None if no micro-batch would fit."""
    shape, cuda = read_shape(model), model.device == "cuda"
    fitting = [
        budget for budget in BUDGETS if _planned(size, model, shape, _policy(budget, checkpointing, compiled)) < _room()
    ]
    if not fitting:
        return None
    policy = _policy(fitting[0] if cuda else BUDGETS[-1], checkpointing, compiled)
    worker = PolicyRank(_spec(size, model, policy))
    rows = random_rows(size.sequences, size.prompt, [size.response], shape.vocab)
    advantages = torch.ones(len(rows), size.response)
    advantages[::2] *= -1
    batch = TrainBatch(rows=rows).with_advantages(advantages)
    worker.update(batch, 1)  # compiles, allocates, and makes the optimiser's state
    synchronise()
    started = time.perf_counter()
    for i in range(size.updates):
        worker.update(batch, 2 + i)
    synchronise()
    seconds = time.perf_counter() - started
    fed = size.updates * len(rows) * (size.tokens - 1)
    flops = size.updates * len(rows) * update_flops(shape, size.tokens - 1, size.response)
    return Updated(
        options=" + ".join([str(model.attention), *["checkpointing"] * checkpointing, *["compile"] * compiled]),
        budget=policy.max_microbatch_tokens,
        tokens_per_s=fed / seconds,
        utilisation=flops / seconds / DENSE_BF16 if cuda else None,
        peak=torch.cuda.max_memory_allocated() if cuda else None,
        planned=_planned(size, model, shape, policy),
    )


def update_flops(shape: ModelShape, tokens: int, trained: int) -> int:
    """Model FLOPs of one sequence, forward and backward: 6 a parameter and token, the output head's for the trained
    tokens alone, and 6 * heads * head_dim * tokens^2 for each block's causal attention (half of the square is needed).
    An embedding that is not the head multiplies nothing. Recomputation does not count.
    """
    head = shape.vocab * shape.hidden
    body = shape.n_parameters - head * (1 if shape.tied else 2)
    return 6 * body * tokens + 6 * head * trained + 6 * shape.layers * shape.queries * tokens**2


def _policy(budget: int, checkpointing: bool, compiled: bool) -> PolicyConfig:
    return PolicyConfig(max_microbatch_tokens=budget, activation_checkpointing=checkpointing, compile=compiled)


def _spec(size: Size, model: ModelConfig, policy: PolicyConfig) -> PolicySpec:
    return PolicySpec(
        model=model, policy=policy, train=TrainConfig(), policy_loss=PpoClip(PpoClipConfig()), temperature=1.0,
        max_response_tokens=size.response, total_steps=100, seed=1,
    )  # fmt: skip


def _planned(size: Size, model: ModelConfig, shape: ModelShape, policy: PolicyConfig) -> int:
    config = Config(
        model=model,
        policy=policy,
        data=DataConfig(max_prompt_tokens=size.prompt),
        rollout=RolloutConfig(group_size=size.sequences, max_response_tokens=size.response),
        train=TrainConfig(tasks_per_step=1),
    )
    side = TrainedModel(shape=shape, config=config, ranks=1, cuda=model.device == "cuda")
    return max(sum(parts.values()) for parts in phases(side).values())


def _room() -> float:
    return ROOM * torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else float("inf")


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
