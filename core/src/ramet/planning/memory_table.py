"""The plan in words: a table of GiB per device, one column for every phase, and what stands beside it."""

from __future__ import annotations

from ramet.planning.memory import DeviceMemory, MemoryPlan


def gib(size: float) -> str:
    return f"{size / 2**30:.1f}" if size >= 2**30 else f"{size / 2**30:.3f}"


def table(plan: MemoryPlan) -> list[str]:
    """Lines. Weights, gradients and optimiser are exact; the rest are estimates."""
    lines = [line for device in plan.devices for line in _device(plan, device)]
    lines.append(f"a policy rank computes at most {plan.tokens:,} tokens at once")
    if plan.engine is not None:
        engine = plan.engine
        lines.append(
            f"keys and values: {engine.token_bytes:,} bytes a token; room for {engine.cache // engine.token_bytes:,} "
            f"tokens of an engine, all slots at full length would want {engine.wanted // engine.token_bytes:,}"
        )
    if plan.inputs.machine.cuda and plan.host:
        lines.append(f"host memory: {gib(plan.host)} GiB over all ranks")
    return [*lines, _verdict(plan)]


def _device(plan: MemoryPlan, device: DeviceMemory) -> list[str]:
    names = list(dict.fromkeys(name for parts in device.phases.values() for name in parts))
    phases = list(device.phases)
    where = f"cuda {device.devices.numbers}" if plan.inputs.machine.cuda else f"each of {device.devices.count}"
    head = f"{where}: {device.devices.role}, GiB each"
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


def _verdict(plan: MemoryPlan) -> str:
    machine = plan.inputs.machine
    if not machine.cuda:
        have = "" if machine.host_bytes is None else f" of {gib(machine.host_bytes)} GiB of this machine"
        return f"all processes together: {gib(plan.need)} GiB{have}"
    if machine.device_bytes is None:
        return f"the largest need of a device: {gib(plan.need)} GiB"
    free = "" if machine.free_bytes is None else f", {gib(machine.free_bytes)} GiB of it free now"
    return f"the largest need of a device: {gib(plan.need)} of {gib(machine.device_bytes)} GiB{free}"
