"""Memory of the ranks of `ramet sft`, in bytes: the policy's formulas (`memory_policy`), and DeepSpeed's.

Without a strategy a rank is the policy's only one; with `fsdp` it is one of W, sharded by FSDP2 as the policy is. With
DeepSpeed it is counted here, after the sources of DeepSpeed 0.19. Letters as in `memory_policy`.

Weights, gradients and optimiser are exact but for what DeepSpeed pads: tests compare them with real ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from ramet.config.schema import (
    Config,
    DataConfig,
    Offload,
    PolicyConfig,
    RolloutConfig,
    SharePrefixes,
    Strategy,
    TrainConfig,
)
from ramet.errors import ConfigError
from ramet.models.attention import KNOWS_BORDERS, chosen_attention
from ramet.planning.memory import (
    ASIDE,
    CONTEXTS,
    CPU_PROCESS_BYTES,
    PROCESS_BYTES,
    PROCESSES,
    UPDATE,
    DeviceMemory,
    Inputs,
    MemoryPlan,
)
from ramet.planning.memory_engine import CUDA_CONTEXT
from ramet.planning.memory_policy import (
    ACTIVATIONS,
    FLIGHT,
    GRADIENTS,
    OPTIMISER,
    RESERVED,
    WEIGHTS,
    WORK,
    TrainedModel,
    activations,
    head_work,
    phases,
    reserved,
    state,
)
from ramet.planning.model_shape import count as parameters
from ramet.planning.model_shape import read_shape
from ramet.planning.placement import DevicePlan, Devices, Machine
from ramet.policy.batching.packing import PackedLayout, model_cost
from ramet.policy.batching.partition import plans_of_parts

LOADED = "weights while they are read"
# DeepSpeed's defaults, in numbers, not bytes: of a buffer of gradients that are reduced together, of gathered weights
# that a rank keeps in ZeRO-3 (stage3_max_live_parameters), and of weights that are stepped at once (sub_group_size).
BUCKET, LIVE, STEPPED = 5 * 10**8, 10**9, 10**9
MASTER = 4  # bytes of what AdamW steps: float32


@dataclass(frozen=True, kw_only=True)  # without slots, for cached properties
class SftInputs(Inputs):
    """The inputs of the plan of a fine-tuning."""

    # Tokens that are fed of each sequence of each optimiser step: all but its last. None: the rows were not read.
    steps: Sequence[Sequence[int]] | None = None

    @property
    def ranks(self) -> int:
        return self.config.cluster.policy_workers

    @property
    def strategy(self) -> Strategy:
        return self.config.sft.strategy

    @property
    def deepspeed(self) -> bool:
        return self.strategy not in (Strategy.NONE, Strategy.FSDP)

    @property
    def offloads(self) -> bool:
        return self.strategy is Strategy.ZERO3_OFFLOAD

    @cached_property
    def fed(self) -> Sequence[Sequence[int]]:
        """Return `steps` without what `sft.max_tokens` leaves out; empty if nothing is known or left."""
        most = self.config.sft.max_tokens
        kept = ([tokens for tokens in step if tokens < most] for step in self.steps or ())
        return [step for step in kept if step]

    @property
    def n_trained(self) -> int:
        """Number of weights that are trained."""
        return parameters(self.model.trained) if self.config.sft.lora_rank else self.shape.n_parameters

    @property
    def longest(self) -> int:
        """The most tokens of a sequence."""
        return max(map(max, self.fed)) if self.fed else self.config.sft.max_tokens

    @cached_property
    def model(self) -> TrainedModel:
        return TrainedModel(
            shape=self.shape,
            config=_as_training(self),
            packed=_most_positions(self) if self.fed else None,
            ranks=self.ranks,
            cuda=self.machine.cuda,
            alone=self.strategy is Strategy.NONE,
        )


def plan_sft_memory(config: Config, machine: Machine, steps: Sequence[Sequence[int]] | None = None) -> MemoryPlan | str:
    """The plan for the model in `model.path`, or why it has none. A model without a plan may still train."""
    try:
        shape = read_shape(config.model)
    except ConfigError as error:
        return f"not estimated: {error}"
    return estimate_sft(SftInputs(config=config, shape=shape, machine=machine, steps=steps))


def estimate_sft(inputs: SftInputs) -> MemoryPlan:
    devices = Devices(first=0, count=inputs.ranks, ranks=inputs.ranks, engines=0)
    placement = DevicePlan(
        cluster="local",
        engine="",
        ranks=inputs.ranks,
        engines=0,
        tensor_parallel=1,
        on="cuda" if inputs.machine.cuda else "cpu",
        devices=(devices,),
    )
    return MemoryPlan(
        inputs=inputs,
        placement=placement,
        devices=(DeviceMemory(devices=devices, phases={UPDATE: _update(inputs)}),),
        engine=None,
        tokens=inputs.model.tokens,
        host_parts=_host_parts(inputs),
    )


def _most_positions(inputs: SftInputs) -> int:
    """Return the most positions that a rank computes in one pass, from steps that are packed as in training."""
    device, sft = "cuda" if inputs.machine.cuda else "cpu", inputs.config.sft
    attention = chosen_attention(inputs.config.model, device, plain=inputs.shape.plain)
    row_cost = model_cost(inputs.shape.hidden, torch.device(device))
    cost = None if attention in KNOWS_BORDERS else row_cost
    most = 0
    for step in inputs.fed:
        budget = sft.max_microbatch_tokens
        for passes in plans_of_parts(step, inputs.ranks, budget=budget, cost=cost, row_cost=row_cost):
            for indices, layout in passes:
                lengths = [step[i] for i in indices]
                packed = layout is PackedLayout.PACKED
                most = max(most, sum(lengths) if packed else len(lengths) * max(lengths))
    return most


def _as_training(inputs: SftInputs) -> Config:
    """The sections that the formulas read: a fine-tuning is a training whose step is one optimiser step of sequences of
    at most `longest` tokens. On GPUs blocks are checkpointed (sft/trainer.py).
    """
    config = inputs.config
    return Config(
        model=config.model,
        cluster=config.cluster,
        data=DataConfig(max_prompt_tokens=0),
        rollout=RolloutConfig(group_size=1, max_response_tokens=inputs.longest),
        train=TrainConfig(tasks_per_step=config.sft.sequences_per_step, minibatches=1),
        policy=PolicyConfig(
            max_microbatch_tokens=config.sft.max_microbatch_tokens,
            activation_checkpointing=inputs.machine.cuda,
            offload=Offload.NONE,
            share_prefixes=SharePrefixes.NEVER,  # sequences are packed as they are (sft/batches.py)
            lora_rank=config.sft.lora_rank,
        ),
    )


def sft_state(inputs: SftInputs) -> dict[str, int]:
    """Return the bytes of one rank, on its device or, offloaded, in host memory.

    `none`, `fsdp`: as the policy's. DeepSpeed: weights c P for the passes and, with ZeRO-2 and 3, 4 P that AdamW steps,
    gradients c P, moments 8 P. Spread over W are, with ZeRO-2, all but the weights of the passes; with ZeRO-3 all. With
    LoRA P is the adapter's, and the base model adds c for each weight.
    """
    if not inputs.deepspeed:
        return state(inputs.model)
    count, share = inputs.n_trained, -(-inputs.n_trained // inputs.ranks)
    whole, size = count + parameters(inputs.model.frozen), inputs.model.computed
    match inputs.strategy:
        case Strategy.ZERO0:  # only float32 (sft/strategies.py)
            return {WEIGHTS: MASTER * whole, GRADIENTS: MASTER * count, OPTIMISER: 2 * MASTER * count}
        case Strategy.ZERO2:
            weights = size * whole + MASTER * share
        case _:
            weights = size * -(-whole // inputs.ranks) + MASTER * share
    return {WEIGHTS: weights, GRADIENTS: size * share, OPTIMISER: 2 * MASTER * share}


def _update(inputs: SftInputs) -> Mapping[str, int]:
    """Parts at the peak of an optimiser step."""
    model = inputs.model
    moments = _deepspeed_phases(inputs) if inputs.deepspeed else phases(model)
    worst = max(moments.values(), key=lambda parts: sum(parts.values()))
    if not inputs.machine.cuda:
        return worst
    lost = sum(worst.get(name, 0) for name in (FLIGHT, ACTIVATIONS, WORK)) // 20
    return {**worst, CONTEXTS: CUDA_CONTEXT, RESERVED: lost if inputs.deepspeed else reserved(model, worst)}


def _deepspeed_phases(inputs: SftInputs) -> Mapping[str, Mapping[str, int]]:
    """Parts by moment. In flight: c 5e8 of gradients that are reduced together, which ZeRO-2 and 3 allocate on a GPU
    however few there are (elsewhere min(P, 5e8): nothing touches the rest), and, with ZeRO-3, c min(P, 1e9) of gathered
    weights. A step computes on gradients in float32, 4 min(P/W, 1e9) where they are in bfloat16.
    """
    model, count, size = inputs.model, inputs.n_trained, inputs.model.computed
    held = {} if inputs.offloads else sft_state(inputs)
    live = min(inputs.shape.n_parameters, LIVE) if inputs.strategy in (Strategy.ZERO3, Strategy.ZERO3_OFFLOAD) else 0
    whole = inputs.machine.cuda and inputs.strategy is not Strategy.ZERO0
    flight = {FLIGHT: size * (live + (BUCKET if whole else min(count, BUCKET)))}
    kept, block = activations(model)
    stepped = MASTER * min(-(-count // inputs.ranks), STEPPED) if size < MASTER and not inputs.offloads else 0
    return {
        "output head": {**held, **flight, ACTIVATIONS: kept, WORK: head_work(model)},
        "block": {**held, **flight, ACTIVATIONS: kept, WORK: block},
        "optimiser step": {**held, **flight, WORK: stepped},
    }


def _host_parts(inputs: SftInputs) -> dict[str, int]:
    """The processes and offloaded tensors; with GPUs also the model, which every rank of a strategy reads completely.
    Before FSDP2 shards it, accelerate makes float32 of it.
    """
    alone = inputs.strategy is Strategy.NONE
    processes = 1 if alone else 1 + inputs.ranks
    aside = inputs.ranks * sum(sft_state(inputs).values()) if inputs.offloads else 0
    if not inputs.machine.cuda:
        return {ASIDE: aside, PROCESSES: processes * CPU_PROCESS_BYTES}
    upcast = inputs.strategy is Strategy.FSDP and not inputs.config.sft.lora_rank
    size = MASTER if upcast else inputs.model.computed
    return {
        ASIDE: aside,
        LOADED: 0 if alone else inputs.ranks * size * inputs.shape.n_parameters,
        PROCESSES: processes * PROCESS_BYTES,
    }
