"""What the ranks of `ramet sft` hold, in bytes: the formulas of the policy (`memory_policy`), and those of DeepSpeed.

Without a strategy a rank is the policy's only one; with `fsdp` it is one of W, sharded by FSDP2 as the policy is. With
DeepSpeed it is counted here, after the sources of DeepSpeed 0.19. Letters are those of `memory_policy`.

Weights, gradients and optimiser are exact but for what DeepSpeed pads: tests compare them with real ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
from ramet.planning.memory import (
    ASIDE,
    CONTEXTS,
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
from ramet.planning.model_shape import read_shape
from ramet.planning.placement import DevicePlan, Devices, Machine

LOADED = "weights while they are read"
# DeepSpeed's defaults, in numbers, not bytes: of a buffer of gradients that are reduced together, of whole weights that
# a rank keeps in ZeRO-3 (stage3_max_live_parameters), and of weights that are stepped at once (sub_group_size).
BUCKET, LIVE, STEPPED = 5 * 10**8, 10**9, 10**9
MASTER = 4  # bytes of what AdamW steps: float32


@dataclass(frozen=True, slots=True, kw_only=True)
class SftInputs(Inputs):
    """What the plan of a fine-tuning follows from."""

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

    @property
    def model(self) -> TrainedModel:
        return TrainedModel(
            shape=self.shape,
            config=_as_training(self.config, self.machine),
            ranks=self.ranks,
            cuda=self.machine.cuda,
            alone=self.strategy is Strategy.NONE,
        )


def plan_sft_memory(config: Config, machine: Machine) -> MemoryPlan | str:
    """The plan for the model in `model.path`, or why there is none: a model that is built otherwise may still train."""
    try:
        shape = read_shape(config.model)
    except ConfigError as error:
        return f"not estimated: {error}"
    return estimate_sft(SftInputs(config=config, shape=shape, machine=machine))


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


def _as_training(config: Config, machine: Machine) -> Config:
    """The sections that the formulas read: a fine-tuning is a training whose step is one optimiser step of sequences of
    at most `sft.max_tokens`. On GPUs blocks are checkpointed (sft/trainer.py).
    """
    return Config(
        model=config.model,
        cluster=config.cluster,
        data=DataConfig(max_prompt_tokens=0),
        rollout=RolloutConfig(group_size=1, max_response_tokens=config.sft.max_tokens),
        train=TrainConfig(tasks_per_step=config.sft.sequences_per_step, minibatches=1),
        policy=PolicyConfig(
            max_microbatch_tokens=config.sft.max_microbatch_tokens,
            activation_checkpointing=machine.cuda,
            offload=Offload.NONE,
            share_prefixes=SharePrefixes.NEVER,  # sequences are packed as they are (sft/batches.py)
        ),
    )


def sft_state(inputs: SftInputs) -> dict[str, int]:
    """Return the bytes of one rank, on its device or, offloaded, in host memory.

    `none`, `fsdp`: as the policy's. DeepSpeed: weights c P for the passes and, with ZeRO-2 and 3, 4 P that AdamW steps,
    gradients c P, moments 8 P. Spread over W are, with ZeRO-2, all but the weights of the passes; with ZeRO-3 all.
    """
    if not inputs.deepspeed:
        return state(inputs.model)
    count, share = inputs.shape.n_parameters, -(-inputs.shape.n_parameters // inputs.ranks)
    size = inputs.model.computed
    match inputs.strategy:
        case Strategy.ZERO0:  # float32 alone (sft/strategies.py)
            return {WEIGHTS: MASTER * count, GRADIENTS: MASTER * count, OPTIMISER: 2 * MASTER * count}
        case Strategy.ZERO2:
            weights = size * count + MASTER * share
        case _:
            weights = (size + MASTER) * share
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
    however few there are (elsewhere min(P, 5e8): nothing touches the rest), and, with ZeRO-3, c min(P, 1e9) of whole
    weights. A step computes on gradients in float32, 4 min(P/W, 1e9) where they are in bfloat16.
    """
    model, count, size = inputs.model, inputs.shape.n_parameters, inputs.model.computed
    held = {} if inputs.offloads else sft_state(inputs)
    live = min(count, LIVE) if inputs.strategy in (Strategy.ZERO3, Strategy.ZERO3_OFFLOAD) else 0
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
    """What is offloaded; with GPUs also the processes, and the model, which every rank of a strategy reads as a whole.
    Before FSDP2 shards it, accelerate makes float32 of it.
    """
    aside = inputs.ranks * sum(sft_state(inputs).values()) if inputs.offloads else 0
    if not inputs.machine.cuda:
        return {ASIDE: aside}
    alone = inputs.strategy is Strategy.NONE
    size = MASTER if inputs.strategy is Strategy.FSDP else inputs.model.computed
    return {
        ASIDE: aside,
        LOADED: 0 if alone else inputs.ranks * size * inputs.shape.n_parameters,
        PROCESSES: (1 if alone else 1 + inputs.ranks) * PROCESS_BYTES,
    }
