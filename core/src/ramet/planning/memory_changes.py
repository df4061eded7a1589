"""Settings that would lower a plan's need of memory, for the advice of a refusal: one at a time, by key.

Settings of where and how things are computed come first, and last the settings that change the learning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ramet.config.schema import Config, Dtype, Offload, Strategy
from ramet.engines.config import TorchEngineConfig, VllmEngineConfig
from ramet.planning.memory import MemoryPlan
from ramet.planning.memory_policy import longest_sequence
from ramet.planning.memory_sft import SftInputs
from ramet.planning.placement import all_devices, tensor_parallel
from ramet.policy.check import possible_replicas


@dataclass(frozen=True, slots=True)
class Change:
    key: str
    value: str
    config: Config

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


def changes(plan: MemoryPlan) -> Iterator[Change]:
    if isinstance(plan.inputs, SftInputs):
        yield from _of_sft(plan.inputs)
    else:
        yield from _of_run(plan)


def _of_run(plan: MemoryPlan) -> Iterator[Change]:
    config, machine = plan.inputs.config, plan.inputs.machine
    policy, cluster = config.policy, config.cluster
    longest = longest_sequence(config)
    if policy.checkpoint_every != 1:
        yield _policy(config, activation_checkpointing=True)
    smaller = max(-(-longest // policy.sequence_parallel), policy.max_microbatch_tokens // 2)
    if smaller < policy.max_microbatch_tokens:
        yield _policy(config, max_microbatch_tokens=smaller)
    if machine.cuda and policy.offload is Offload.NONE:
        yield _policy(config, offload=Offload.OPTIMIZER)
    if machine.cuda and policy.offload is not Offload.ALL and plan.placement.ranks > 1:
        yield _policy(config, offload=Offload.ALL)
    yield from _half(config)
    if machine.cuda and cluster.name == "ray":
        yield from _cluster(plan)
    if (spread := all_devices(config, machine) if plan.inputs.trains else None) is not None:
        keys = f"policy_workers={spread.policy_workers} cluster.rollout_workers={spread.rollout_workers}"
        together = " cluster.colocate=true" if spread.colocate else ""
        yield Change("cluster", f"ray cluster.{keys}{together}", replace(config, cluster=spread))
    yield from _engine(config)
    response = config.rollout.max_response_tokens
    shorter = replace(config, rollout=replace(config.rollout, max_response_tokens=response // 2))
    yield Change("rollout.max_response_tokens", str(response // 2), shorter)
    if not policy.lora_rank:
        yield _policy(config, lora_rank=32)


def _cluster(plan: MemoryPlan) -> Iterator[Change]:
    config = plan.inputs.config
    cluster, policy = config.cluster, config.policy
    twice = replace(config, cluster=replace(cluster, policy_workers=2 * cluster.policy_workers))
    yield Change("cluster.policy_workers", str(2 * cluster.policy_workers), twice)
    shared = 2 * policy.sequence_parallel
    per_replica = cluster.policy_workers // policy.replicas
    if per_replica % shared == 0 and plan.inputs.shape.heads % shared == 0:
        yield _policy(config, sequence_parallel=shared)
    if fewer := [n for n in possible_replicas(policy, cluster.policy_workers) if n < policy.replicas]:
        yield _policy(config, replicas=fewer[-1])


def _engine(config: Config) -> Iterator[Change]:
    match config.engine.params:
        case TorchEngineConfig() as options if options.slots >= 8:
            yield _params(config, "slots", options.slots // 2)
        case VllmEngineConfig() as options if options.kv_cache_bytes is not None:
            yield _params(config, "kv_cache_bytes", options.kv_cache_bytes // 2)
        case VllmEngineConfig() as options:
            if hasattr(options, "tensor_parallel"):
                yield _params(config, "tensor_parallel", 2 * tensor_parallel(config))
            yield _params(config, "gpu_memory_utilization", round(options.gpu_memory_utilization / 2, 2))


def _policy(config: Config, **option: Any) -> Change:
    ((key, value),) = option.items()
    return Change(f"policy.{key}", written(value), replace(config, policy=replace(config.policy, **option)))


def _params(config: Config, key: str, value: float) -> Change:
    params = replace(config.engine.params, **{key: value})
    return Change(f"engine.params.{key}", written(value), replace(config, engine=replace(config.engine, params=params)))


def written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of_sft(inputs: SftInputs) -> Iterator[Change]:
    config, sft, devices = inputs.config, inputs.config.sft, inputs.machine.devices
    smaller = max(sft.max_tokens, sft.max_microbatch_tokens // 2)  # fewer are refused
    if smaller < sft.max_microbatch_tokens:
        yield _sft(config, max_microbatch_tokens=smaller)
    if inputs.ranks > 1:
        others = [Strategy.FSDP, Strategy.ZERO3] + [Strategy.ZERO3_OFFLOAD] * inputs.machine.cuda
        yield from (_sft(config, strategy=other) for other in others if other is not inputs.strategy)
    if inputs.strategy is not Strategy.ZERO0:  # which is only for float32
        yield from _half(config)
    if inputs.strategy is not Strategy.NONE and inputs.machine.cuda and (devices or 0) >= 2 * inputs.ranks:
        workers = 2 * inputs.ranks
        more = replace(config, cluster=replace(config.cluster, policy_workers=workers))
        yield Change("cluster.policy_workers", str(workers), more)
    if inputs.strategy is Strategy.NONE and inputs.machine.cuda and (devices or 1) > 1:
        spread = replace(config.cluster, policy_workers=devices or 1)
        all_of_them = replace(config, sft=replace(sft, strategy=Strategy.FSDP), cluster=spread)
        yield Change("sft.strategy", f"fsdp cluster.policy_workers={devices}", all_of_them)
    shorter = _sft(config, max_tokens=inputs.longest // 2)
    if inputs.steps is None or replace(inputs, config=shorter.config).fed:  # rows are left
        yield shorter
    if not sft.lora_rank:
        yield _sft(config, lora_rank=32)


def _half(config: Config) -> Iterator[Change]:
    if config.model.dtype is Dtype.FLOAT32:
        yield Change("model.dtype", "bfloat16", replace(config, model=replace(config.model, dtype=Dtype.BFLOAT16)))


def _sft(config: Config, **option: Any) -> Change:
    ((key, value),) = option.items()
    return Change(f"sft.{key}", written(value), replace(config, sft=replace(config.sft, **option)))
