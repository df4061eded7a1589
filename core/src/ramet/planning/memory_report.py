"""A memory plan in words: the table that `--dry-run` prints, and why a run is refused that cannot fit.

A refusal names the three settings that would help most, found by making the plan again with each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ramet.cluster.check import check_cluster
from ramet.config.schema import Config, Dtype, Offload
from ramet.engines.config import TorchEngineConfig, VllmEngineConfig
from ramet.errors import MissingHere
from ramet.planning.memory import DeviceMemory, MemoryPlan, estimate
from ramet.planning.memory_policy import longest_sequence
from ramet.planning.placement import all_devices, check_placement, idle_devices, shards_in_words, tensor_parallel
from ramet.policy.check import possible_replicas


def gib(size: float) -> str:
    return f"{size / 2**30:.1f}" if size >= 2**30 else f"{size / 2**30:.3f}"


def table(plan: MemoryPlan | str) -> list[str]:
    """Lines. Weights, gradients and optimiser are exact; the rest are estimates. A text is why there is no plan."""
    if isinstance(plan, str):
        return [plan]
    lines = [line for device in plan.devices for line in _device(plan, device)]
    if plan.placement.ranks:
        lines.append(f"a policy rank computes at most {plan.tokens:,} tokens at once")
    if plan.engine is not None:
        engine = plan.engine
        lines.append(
            f"keys and values: {engine.token_bytes:,} bytes a token; room for {engine.cache // engine.token_bytes:,} "
            f"tokens of an engine, all slots at full length would want {engine.wanted // engine.token_bytes:,}"
        )
    if plan.inputs.machine.cuda and plan.host:
        parts = ", ".join(f"{name} {gib(size)}" for name, size in plan.host_parts.items() if size)
        lines.append(f"host memory of all nodes: {gib(plan.host)} GiB ({parts})")
    idle = idle_devices(plan.inputs.config, plan.inputs.machine, trains=plan.inputs.trains)
    shards = shards_in_words(plan.inputs.config, plan.inputs.machine) if plan.inputs.trains else ""
    return [*lines, _verdict(plan), *filter(None, (idle, shards))]


def _device(plan: MemoryPlan, device: DeviceMemory) -> list[str]:
    names = list(dict.fromkeys(name for parts in device.phases.values() for name in parts))
    phases = list(device.phases)
    head = f"{_where(plan, device)}, GiB{' each' if device.devices.count > 1 else ''}"
    width = max(len(name) for name in [*names, "sum", head]) + 2
    rows = [head.ljust(width) + "".join(phase.rjust(max(10, len(phase) + 2)) for phase in phases)]
    for name in [*names, "sum"]:
        cells = []
        for phase in phases:
            parts = device.phases[phase]
            size = sum(parts.values()) if name == "sum" else parts.get(name)
            cells.append(("" if size is None else gib(size)).rjust(max(10, len(phase) + 2)))
        rows.append(f"  {name}".ljust(width) + "".join(cells).rstrip())
    return rows


def _where(plan: MemoryPlan, device: DeviceMemory) -> str:
    devices = device.devices
    if plan.inputs.machine.cuda:
        return f"cuda {devices.numbers}: {devices.role}"
    return devices.role if devices.count == 1 else f"{devices.count} processes: {devices.role}"


def _verdict(plan: MemoryPlan) -> str:
    machine = plan.inputs.machine
    if not machine.cuda:
        have = "" if machine.host_bytes is None else f" of {gib(machine.host_bytes)} GiB of this machine"
        return f"all processes together: {gib(plan.need)} GiB{have}"
    if machine.device_bytes is None:
        return f"the largest need of a device: {gib(plan.need)} GiB"
    free = "" if machine.free_bytes is None else f", {gib(machine.free_bytes)} GiB of it free now"
    return f"the largest need of a device: {gib(plan.need)} of {gib(machine.device_bytes)} GiB{free}"


@dataclass(frozen=True, slots=True)
class Change:
    key: str
    value: str
    config: Config

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


def check_memory(plan: MemoryPlan | str) -> list[str]:
    """Problems: devices whose memory is known and too small, a host that is, an engine without room for one rollout.

    None where there is no plan.
    """
    if isinstance(plan, str):
        return []
    machine = plan.inputs.machine
    problems = [] if machine.cuda else _check_host(plan, plan.need)
    if machine.cuda and machine.device_bytes is not None:
        worst = max(plan.devices, key=lambda device: device.need)
        if worst.need > machine.device_bytes:
            problems.append(_too_much(plan, worst, machine.device_bytes))
        problems += _check_host(plan, plan.host)
    return problems + _check_cache(plan)


def _too_much(plan: MemoryPlan, worst: DeviceMemory, have: int) -> str:
    parts = sorted(worst.phases[worst.peak].items(), key=lambda part: -part[1])
    held = ", ".join(f"{name} {gib(size)}" for name, size in parts if size)
    return (
        f"memory: cuda {worst.devices.numbers} ({worst.devices.role}) would need {gib(worst.need)} GiB in the phase "
        f"{worst.peak!r}, and has {gib(have)} GiB ({held}); {_advice(plan)}"
    )


def _check_host(plan: MemoryPlan, need: int) -> list[str]:
    have = plan.inputs.machine.host_bytes
    if have is None or need <= have:
        return []
    return [f"memory: host memory: {gib(need)} GiB would be needed, and there are {gib(have)} GiB; {_advice(plan)}"]


def _check_cache(plan: MemoryPlan) -> list[str]:
    engine = plan.engine
    if engine is None or engine.cache >= engine.sequence:
        return []
    given = getattr(plan.inputs.config.engine.params, "kv_cache_bytes", None)  # where it is set, nothing else counts
    more = "engine.params.gpu_memory_utilization or set engine.params.kv_cache_bytes"
    return [
        f"memory: the engine's keys and values get {gib(engine.cache)} GiB, and one rollout of "
        f"{longest_sequence(plan.inputs.config)} tokens takes {gib(engine.sequence)} GiB; raise "
        f"{more if given is None else f'engine.params.kv_cache_bytes={given}'}, or lower rollout.max_response_tokens"
    ]


def _advice(plan: MemoryPlan) -> str:
    """The three settings that lower the need most, and what each comes to alone."""
    needs: dict[str, tuple[int, Change]] = {}
    for change in filter(partial(_allowed, plan), _changes(plan)):
        need = estimate(replace(plan.inputs, config=change.config)).need
        if need < needs.get(change.key, (plan.need, change))[0]:
            needs[change.key] = need, change
    best = sorted(needs.values(), key=lambda found: found[0])[:3]
    idle = idle_devices(plan.inputs.config, plan.inputs.machine, trains=plan.inputs.trains)
    end = f"; {idle}" if idle else ""
    if not best:
        return f"no single setting lowers it: a smaller model or larger devices are needed{end}"
    return "what helps most, each alone: " + ", ".join(f"{change} ({gib(need)} GiB)" for need, change in best) + end


def _allowed(plan: MemoryPlan, change: Change) -> bool:
    """Whether it brings no problem of placement that was not there before."""

    def problems(config: Config) -> set[str]:
        inputs = plan.inputs
        missing = inputs.machine.written is not None  # another machine may have what this one lacks
        found = [one for one in check_cluster(config) if not (missing and isinstance(one, MissingHere))]
        return {*found, *check_placement(config, inputs.machine, trains=inputs.trains)}

    return problems(change.config) <= problems(plan.inputs.config)


def _changes(plan: MemoryPlan) -> Iterator[Change]:
    """Settings of where and how things are computed, and, last, two that change what is learned."""
    config, machine = plan.inputs.config, plan.inputs.machine
    policy, cluster = config.policy, config.cluster
    longest = longest_sequence(config)
    if not policy.activation_checkpointing:
        yield _policy(config, activation_checkpointing=True)
    smaller = max(-(-longest // policy.sequence_parallel), policy.max_microbatch_tokens // 2)
    if smaller < policy.max_microbatch_tokens:
        yield _policy(config, max_microbatch_tokens=smaller)
    if machine.cuda and policy.offload is Offload.NONE:
        yield _policy(config, offload=Offload.OPTIMIZER)
    if machine.cuda and policy.offload is not Offload.ALL and plan.placement.ranks > 1:
        yield _policy(config, offload=Offload.ALL)
    if config.model.dtype is Dtype.FLOAT32:
        yield Change("model.dtype", "bfloat16", replace(config, model=replace(config.model, dtype=Dtype.BFLOAT16)))
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
    return Change(f"policy.{key}", _written(value), replace(config, policy=replace(config.policy, **option)))


def _params(config: Config, key: str, value: float) -> Change:
    params = replace(config.engine.params, **{key: value})
    return Change(
        f"engine.params.{key}", _written(value), replace(config, engine=replace(config.engine, params=params))
    )


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
