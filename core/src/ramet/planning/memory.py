"""How many bytes a run needs on each device, before anything is loaded: from the configuration and the model's shapes.

A device goes through phases, and the plan's number belongs to the worst: the peak of an update plus all that stays on
the device, or rollouts plus the policy's memory between updates. With `cluster.colocate` a vLLM engine on GPUs sleeps
during updates; any other engine that shares a device keeps its memory. Every process that computes on a GPU has a CUDA
context there, in all phases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ramet.cluster.check import chosen_transfer
from ramet.config.schema import Config, Dtype, Offload
from ramet.engines.weight_chunks import CHUNK_BYTES
from ramet.errors import ConfigError
from ramet.models.teacher import teacher_config
from ramet.planning.memory_engine import CUDA_CONTEXT, NCCL, EngineMemory, engine_memory
from ramet.planning.memory_policy import RESERVED, TrainedModel, host, phases, reserved, resident, sharded
from ramet.planning.model_shape import ModelShape, read_shape
from ramet.planning.placement import DevicePlan, Devices, Machine, plan_devices
from ramet.types import Need

ASIDE, STORED, PROCESSES = "offloaded and copied for saves", "new weights for engines", "processes"
PROCESS_BYTES = 4 * 2**30  # libraries, CUDA's pinned memory and torch's, of a process that uses a GPU: an assumption
CPU_PROCESS_BYTES = 544 * 2**20  # of one that does not, before it has a model (measured, torch 2.13)
REFERENCE, TEACHER, CRITIC, CONTEXTS = "reference", "teacher", "critic", "CUDA contexts"
ASLEEP, EXCHANGE = "asleep engine", "NCCL"
UPDATE, CRITIC_UPDATE, ROLLOUTS = "update", "critic's update", "rollouts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Inputs of a plan; `needs` are the advantage estimator's and the loss's."""

    config: Config
    shape: ModelShape
    machine: Machine
    needs: frozenset[Need] = frozenset()
    trains: bool = True  # False: only engines, as evaluation has them
    teacher: ModelShape | None = None  # of `train.teacher`


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """One of some devices with the same load. Bytes by phase and part."""

    devices: Devices
    phases: Mapping[str, Mapping[str, int]]

    @property
    def peak(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))

    @property
    def need(self) -> int:
        return sum(self.phases[self.peak].values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    inputs: Inputs
    placement: DevicePlan
    devices: tuple[DeviceMemory, ...]
    engine: EngineMemory | None
    tokens: int  # of one micro-batch on one rank
    host_parts: Mapping[str, int]  # bytes in host memory, of all processes; on a CPU in addition to `devices`

    @property
    def host(self) -> int:
        return sum(self.host_parts.values())

    @property
    def need(self) -> int:
        """Bytes of the device that needs most; on a CPU of all processes together."""
        if self.inputs.machine.cuda:
            return max(device.need for device in self.devices)
        return self.host + sum(device.need * device.devices.count for device in self.devices)


def plan_memory(
    config: Config, machine: Machine, *, needs: frozenset[Need] = frozenset(), trains: bool = True
) -> MemoryPlan | str:
    """The plan for the model in `model.path`, or why it has none. A model without a plan may still run."""
    try:
        shape = read_shape(config.model)
        teacher = teacher_config(config) if trains else None
        teacher_shape = None if teacher is None else read_shape(teacher)
    except ConfigError as error:
        return f"not estimated: {error}"
    inputs = Inputs(config=config, shape=shape, machine=machine, needs=needs, trains=trains, teacher=teacher_shape)
    return estimate(inputs)


def estimate(inputs: Inputs) -> MemoryPlan:
    config, machine = inputs.config, inputs.machine
    placement = plan_devices(config, machine, trains=inputs.trains)
    model, critic = trained_models(inputs, placement)
    engine = engine_memory(config, inputs.shape, machine.device_bytes, cuda=machine.cuda)
    return MemoryPlan(
        inputs=inputs,
        placement=placement,
        devices=tuple(
            DeviceMemory(devices=group, phases=_phases(group, inputs, model, critic, engine))
            for group in placement.devices
        ),
        engine=engine,
        tokens=model.tokens,
        host_parts=_host_parts(inputs, placement, [model] if critic is None else [model, critic]),
    )


def trained_models(inputs: Inputs, placement: DevicePlan) -> tuple[TrainedModel, TrainedModel | None]:
    """The policy, and the critic where the algorithm needs one."""
    config, ranks, cuda = inputs.config, max(1, placement.ranks), inputs.machine.cuda
    policy = TrainedModel(shape=inputs.shape, config=config, ranks=ranks, cuda=cuda)
    if Need.VALUES not in inputs.needs:
        return policy, None
    values = critic_shape(inputs.shape)
    return policy, TrainedModel(shape=values, config=config, ranks=ranks, cuda=cuda, head=((1, values.hidden),))


def _host_parts(inputs: Inputs, placement: DevicePlan, models: list[TrainedModel]) -> dict[str, int]:
    """Offloaded tensors, the copy from which saves are written (`host`), and the processes themselves; with GPUs also
    new weights in the object store with the two buffers through which they go there. An engine that sleeps drops its
    weights and keeps nothing here.
    """
    aside = placement.ranks * sum(map(host, models))
    size = 2 if inputs.config.model.dtype is Dtype.BFLOAT16 else 4
    processes = 1 if placement.cluster == "local" else 1 + placement.ranks
    processes += 0 if placement.engine == "torch" and placement.cluster == "local" else placement.engines
    if not inputs.machine.cuda:
        return {ASIDE: aside, PROCESSES: processes * CPU_PROCESS_BYTES}
    stored = inputs.trains and chosen_transfer(inputs.config, cuda=True) == "host"
    weights = sharded(inputs.shape.parameters, 1, size) + 2 * CHUNK_BYTES
    return {ASIDE: aside, STORED: weights if stored else 0, PROCESSES: processes * PROCESS_BYTES}


def critic_shape(shape: ModelShape) -> ModelShape:
    """The value model: the policy's body and one output instead of the vocabulary (policy/critic.py)."""
    body = list(shape.outside)
    if not shape.tied:
        body.remove((shape.vocab, shape.hidden))
    return replace(shape, outside=(*body, (1, shape.hidden)), vocab=1, tied=False)


def _phases(
    group: Devices, inputs: Inputs, model: TrainedModel, critic: TrainedModel | None, engine: EngineMemory | None
) -> dict[str, dict[str, int]]:
    by_phase: dict[str, dict[str, int]] = {}
    beside: Mapping[str, int] = {}
    if engine is not None and group.engines:
        beside = {ASLEEP: engine.asleep} if engine.sleeps else engine.parts
    contexts = _contexts(group, inputs, engine)
    if inputs.machine.cuda and model.ranks > 1 and group.ranks:
        contexts[EXCHANGE] = NCCL
    if group.ranks:
        frozen = _frozen(inputs, model)
        waiting = {CRITIC: sum(resident(critic).values())} if critic is not None else {}
        by_phase[UPDATE] = _added(_worst(model), frozen, waiting, beside, contexts)
        if critic is not None:
            policy = {"policy": sum(resident(model).values())}
            by_phase[CRITIC_UPDATE] = _added(_worst(critic), frozen, policy, beside, contexts)
            if inputs.machine.cuda:
                by_phase[CRITIC_UPDATE] |= {RESERVED: reserved(critic, _worst(critic))}
        if inputs.machine.cuda:
            by_phase[UPDATE] |= {RESERVED: reserved(model, _worst(model))}
    if group.engines and engine is not None:
        stays = [resident(model), _frozen(inputs, model)] if group.ranks else []
        if group.ranks and critic is not None:
            stays.append({CRITIC: sum(resident(critic).values())})
        by_phase[ROLLOUTS] = _added(engine.parts, *stays, contexts)
        if group.ranks and inputs.machine.cuda:  # the rest of what the update had is given back (policy/rank.py)
            by_phase[ROLLOUTS] |= {RESERVED: reserved(model, resident(model))}
    return by_phase or {ROLLOUTS: {}}


def _contexts(group: Devices, inputs: Inputs, engine: EngineMemory | None) -> dict[str, int]:
    """Policy, reference and critic of a rank are one process.

    An engine without its own process is in that one, or in the only one.
    """
    if not inputs.machine.cuda:
        return {}
    rank = CUDA_CONTEXT if group.ranks else 0
    return {CONTEXTS: max(CUDA_CONTEXT, rank + (engine.context if engine is not None and group.engines else 0))}


def _worst(model: TrainedModel) -> dict[str, int]:
    return max(phases(model).values(), key=lambda parts: sum(parts.values()))


def _frozen(inputs: Inputs, model: TrainedModel) -> dict[str, int]:
    """The frozen copy in `model.dtype`, only where the KL or an algorithm asks for it, and the teacher. Both are
    sharded like the policy.
    """
    config = inputs.config
    if config.policy.offload is Offload.ALL:
        return {}
    needed = config.train.kl_coef > 0 or Need.REFERENCE in inputs.needs
    shapes = {REFERENCE: inputs.shape if needed else None, TEACHER: inputs.teacher}
    size = 2 if config.model.dtype is Dtype.BFLOAT16 else 4
    return {name: sharded(shape.parameters, model.shards, size) for name, shape in shapes.items() if shape is not None}


def _added(*parts: Mapping[str, int]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, size in part.items():
            total[name] = total.get(name, 0) + size
    return total
