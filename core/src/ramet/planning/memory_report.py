"""A memory plan in words: the table that `--dry-run` prints, and why a run is refused that cannot fit.

A refusal names the three settings that would help most, found by making the plan again with each.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ramet.cluster.check import check_cluster
from ramet.config.schema import Config, Strategy
from ramet.errors import MissingHere
from ramet.planning.memory import DeviceMemory, Inputs, MemoryPlan, estimate
from ramet.planning.memory_changes import Change, changes
from ramet.planning.memory_policy import GRADIENTS, OPTIMISER, WEIGHTS, longest_sequence
from ramet.planning.memory_sft import SftInputs, estimate_sft
from ramet.planning.placement import check_placement, idle_devices, shards_in_words

MOST = 6  # settings of a set that fits
LEARNED = ("rollout.max_response_tokens", "policy.lora_rank", "sft.lora_rank", "sft.max_tokens")  # alter learning
ROOMY = 0.97  # share of a device beyond which what the plan leaves out matters
TIGHT = "; little is left for NCCL and the driver, which are not counted: --on takes what nvidia-smi shows"


def gib(size: float) -> str:
    return f"{size / 2**30:.1f}" if size >= 2**30 else f"{size / 2**30:.3f}"


def table(plan: MemoryPlan | str) -> list[str]:
    """Lines. Weights, gradients and optimiser are exact; the rest are estimates.

    A text says why a plan cannot be made.
    """
    if isinstance(plan, str):
        return [plan]
    lines = [line for device in plan.devices for line in _device(plan, device)]
    if plan.placement.ranks:
        rank = "rank" if isinstance(plan.inputs, SftInputs) else "policy rank"
        lines.append(f"a {rank} computes at most {plan.tokens:,} tokens at once{_lengths(plan.inputs)}")
        if not plan.inputs.shape.is_traced:
            lines.append(f"activations are a guess: {plan.inputs.shape.architecture} was not traced")
    if plan.engine is not None:
        engine = plan.engine
        lines.append(
            f"keys and values: {engine.token_bytes:,} bytes a token; room for {engine.cache // engine.token_bytes:,} "
            f"tokens of an engine, all slots at full length would want {engine.wanted // engine.token_bytes:,}"
        )
    parts = ", ".join(f"{name} {gib(size)}" for name, size in plan.host_parts.items() if size)
    if not plan.inputs.machine.cuda:
        lines.append(f"in addition, of all processes, GiB: {parts}")
    elif plan.host:
        nodes = plan.inputs.machine.nodes or 1
        each = f", {gib(plan.host / nodes)} on each of {nodes}" if nodes > 1 else ""
        lines.append(f"host memory of all nodes: {gib(plan.host)} GiB{each} ({parts})")
    inputs = plan.inputs
    places = inputs.trains and not isinstance(inputs, SftInputs)
    shards = shards_in_words(inputs.config, inputs.machine) if places else ""
    return [*lines, _verdict(plan), *filter(None, (_idle(plan), shards))]


def _lengths(inputs: Inputs) -> str:
    """The settings behind the tokens of a fine-tuning; empty for other runs."""
    if not isinstance(inputs, SftInputs):
        return ""
    if inputs.fed:
        return f", as the rows are packed; their longest sequence has {inputs.longest + 1:,}"
    return f"; rows were not read, and count as sft.max_tokens={inputs.longest} long"


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
    tight = TIGHT if ROOMY * machine.device_bytes < plan.need <= machine.device_bytes else ""
    return f"the largest need of a device: {gib(plan.need)} of {gib(machine.device_bytes)} GiB{free}{tight}"


def check_memory(plan: MemoryPlan | str) -> list[str]:
    """Problems: devices whose memory is known and too small, such a host, an engine without room for one rollout.

    None without a plan.
    """
    if isinstance(plan, str):
        return []
    machine = plan.inputs.machine
    problems = [] if machine.cuda else _check_host(plan, plan.need)
    if machine.cuda and machine.device_bytes is not None:
        worst = max(plan.devices, key=lambda device: device.need)
        if _certain(plan, worst) > machine.device_bytes:
            problems.append(_too_much(plan, worst, machine.device_bytes))
        problems += _check_host(plan, plan.host)
    return problems + _check_cache(plan)


def _certain(plan: MemoryPlan, device: DeviceMemory) -> int:
    """Bytes that a refusal may count: all of the plan, or the exact part where its formulas were not traced."""
    if plan.inputs.shape.is_traced:
        return device.need
    return max(sum(parts.get(name, 0) for name in (WEIGHTS, GRADIENTS, OPTIMISER)) for parts in device.phases.values())


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
    # Where it is set, only this counts.
    cache_bytes = getattr(plan.inputs.config.engine.params, "kv_cache_bytes", None)
    more = "engine.params.gpu_memory_utilization or set engine.params.kv_cache_bytes"
    return [
        f"memory: the engine's keys and values get {gib(engine.cache)} GiB, and one rollout of "
        f"{longest_sequence(plan.inputs.config)} tokens takes {gib(engine.sequence)} GiB; raise "
        f"{more if cache_bytes is None else f'engine.params.kv_cache_bytes={cache_bytes}'}, or lower "
        "rollout.max_response_tokens"
    ]


def _advice(plan: MemoryPlan) -> str:
    """The three settings that lower the need most, the need with each of them, and a set that fits if none does."""
    needs: dict[str, tuple[int, Change]] = {}
    for change in filter(partial(allowed, plan), changes(plan)):
        need = again(plan.inputs, change.config).need
        if need < needs.get(change.key, (plan.need, change))[0]:
            needs[change.key] = need, change
    best = sorted(needs.values(), key=lambda pair: pair[0])[:3]
    idle = _idle(plan)
    end = f"; {idle}" if idle else ""
    if not best:
        return f"no single setting lowers it: a smaller model or larger devices are needed{end}"
    alone = ", ".join(f"{change} ({gib(need)} GiB)" for need, change in best)
    return f"what helps most, each by itself: {alone}{_together(plan)}{end}"


def _together(plan: MemoryPlan) -> str:
    """Settings that fit together if one is not enough, those that alter the learning last; empty if none do."""
    combined: dict[str, Change] = {}
    while not fits(plan) and len(combined) < MOST:
        others = [other for other in changes(plan) if other.key not in combined and allowed(plan, other)]
        plans = [(again(plan.inputs, other.config), other) for other in others]
        lower = [pair for pair in plans if pair[0].need < plan.need]
        if not lower:
            return ""
        plan, change = min(
            [pair for pair in lower if pair[1].key not in LEARNED] or lower, key=lambda pair: pair[0].need
        )
        combined[change.key] = change
    if len(combined) < 2 or not fits(plan):
        return ""
    return f"; together these fit: {' '.join(map(str, combined.values()))} ({gib(plan.need)} GiB)"


def fits(plan: MemoryPlan) -> bool:
    machine = plan.inputs.machine
    host, device = machine.host_bytes, machine.device_bytes if machine.cuda else None
    fits_host = host is None or (plan.host if machine.cuda else plan.need) <= host
    return fits_host and (device is None or plan.need <= device) and not _check_cache(plan)


def allowed(plan: MemoryPlan, change: Change) -> bool:
    """Whether it brings no problem of placement that was not there before."""
    if isinstance(plan.inputs, SftInputs):
        return True  # it has processes and no cluster

    def problems(config: Config) -> set[str]:
        inputs = plan.inputs
        missing = inputs.machine.written is not None  # another machine may have what this one lacks
        cluster_problems = [
            problem for problem in check_cluster(config) if not (missing and isinstance(problem, MissingHere))
        ]
        return {*cluster_problems, *check_placement(config, inputs.machine, trains=inputs.trains)}

    return problems(change.config) <= problems(plan.inputs.config)


def again(inputs: Inputs, config: Config) -> MemoryPlan:
    """The plan for this configuration instead."""
    other = replace(inputs, config=config)
    return estimate_sft(other) if isinstance(other, SftInputs) else estimate(other)


def _idle(plan: MemoryPlan) -> str:
    """Name what the plan leaves unused, and a setting that would use it; empty if nothing is."""
    inputs = plan.inputs
    if not isinstance(inputs, SftInputs):
        return idle_devices(inputs.config, inputs.machine, trains=inputs.trains)
    devices = inputs.machine.devices
    if not inputs.machine.cuda or devices is None or inputs.ranks >= devices:
        return ""
    more = "with sft.strategy=fsdp cluster.policy_workers takes more than one"
    how = more if inputs.strategy is Strategy.NONE else "raise cluster.policy_workers"
    return f"{devices - inputs.ranks} of {devices} GPUs would be idle: {how}"
