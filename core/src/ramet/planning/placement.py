"""Devices of policy ranks and rollout workers, from the configuration only. Ray chooses the nodes.

Devices are numbered over all nodes. Policy ranks take one each; rollout workers take `tensor_parallel` each, others or,
with `cluster.colocate`, the same ones, of which there must be as many (cluster/check.py). In one process
(`cluster=local`) everything is on one device, and on a CPU all workers are processes of one host.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

import torch

from ramet.cluster.check import could_colocate, shards_over_nodes
from ramet.config.schema import ClusterConfig, Config
from ramet.errors import ConfigError
from ramet.models.loading import resolve_device
from ramet.planning.gpus import GPUS, gpu_called

UNITS = {"GB": 10**9, "GIB": 2**30, "MIB": 2**20}
_WRITTEN = re.compile(rf"(?:(\d+)x)?(\d+)x(?:(\d+(?:\.\d+)?)(GiB|GB|MiB)|({'|'.join(GPUS)}))", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Machine of a run; None: not known. On a CPU the one device is the host and its memory is all processes'."""

    cuda: bool
    devices: int | None  # over all nodes
    device_bytes: int | None  # of each
    free_bytes: int | None = None  # of the device that was asked; others may differ
    host_bytes: int | None = None
    written: str | None = None  # as the user described it; None: it is this machine
    nodes: int | None = None  # with as many devices each
    gpu: str | None = None  # key in `GPUS`, of each device


def machine_of(config: Config, written: str | None = None, *, ask_free: bool = False) -> Machine:
    """`written` describes GPUs that this machine need not have: `8x80GiB`, devices over all nodes and the memory of
    each, or `8xH100`, a name in `GPUS`, whose speed is known too; `2x8xH100`: nodes and devices of each.

    Without it this machine is asked; how many devices a running Ray cluster (`cluster.address`) has is not known here.
    `ask_free`: also how much memory is free, for which this process takes a CUDA context until it ends. Raises
    `ConfigError`.
    """
    if written is not None:
        match = _WRITTEN.fullmatch(written)
        if match is None or not all(map(float, filter(None, match.groups()[:3]))):
            raise ConfigError(
                f"--on: {written!r} is not a machine; allowed: DEVICESxMEMORY or NODESxDEVICESxMEMORY, such as 8x80GiB "
                f"or 2x8x80GiB (GiB, GB, MiB), and a GPU in the memory's place, such as 8xH100 ({', '.join(GPUS)})"
            )
        gpu, nodes = match[5].upper() if match[5] else None, int(match[1] or 1)
        size = GPUS[gpu].memory if gpu else int(float(match[3]) * UNITS[match[4].upper()])
        return Machine(
            cuda=True,
            devices=nodes * int(match[2]),
            device_bytes=size,
            written=written,
            nodes=nodes if match[1] else None,
            gpu=gpu,
        )
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    device = resolve_device(config.model)
    if device.type != "cuda":
        return Machine(cuda=False, devices=1, device_bytes=host, host_bytes=host)
    free = torch.cuda.mem_get_info(device)[0] if ask_free else None
    properties = torch.cuda.get_device_properties(device)
    n_devices = None if config.cluster.address else torch.cuda.device_count()
    return Machine(
        cuda=True,
        devices=n_devices,
        device_bytes=properties.total_memory,
        free_bytes=free,
        host_bytes=host,
        nodes=1 if n_devices else None,
        gpu=gpu_called(properties.name),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Devices with the same load. `ranks` and `engines`: how many are on them, together."""

    first: int
    count: int
    ranks: int
    engines: int

    @property
    def role(self) -> str:
        parts = ["policy"] * bool(self.ranks) + ["engine"] * bool(self.engines)
        return " and ".join(parts)

    @property
    def numbers(self) -> str:
        return str(self.first) if self.count == 1 else f"{self.first} to {self.first + self.count - 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    cluster: str
    engine: str
    ranks: int
    engines: int
    tensor_parallel: int
    on: str  # "cpu" or "cuda"
    devices: tuple[Devices, ...]
    replicas: int = 1  # of the policy

    @property
    def n_devices(self) -> int:
        return max(group.first + group.count for group in self.devices)

    def __str__(self) -> str:
        wide = self.tensor_parallel > 1
        if self.cluster == "local":
            many = f" of {self.tensor_parallel} devices" if wide else ""
            policy = " and the policy" if self.ranks else ""
            return f"cluster local: engine {self.engine}{many}{policy} in this process, on {self.on}"
        each = f" of {self.tensor_parallel} devices each" if wide else ""
        who = f"{_workers(self.ranks, self.engines, ', ', self.replicas)} with engine {self.engine}{each}"
        if self.on == "cpu":
            return f"cluster {self.cluster}: {who}, on cpu"
        where = "; ".join(f"{group.role} on {self.on} {group.numbers}" for group in self.devices)
        return f"cluster {self.cluster}: {who}: {where}"


def plan_devices(config: Config, machine: Machine, *, trains: bool = True) -> DevicePlan:
    """`trains` False: only engines, as evaluation has them."""
    cluster = config.cluster
    local = cluster.name == "local"
    ranks, engines = (1, 1) if local else (cluster.policy_workers, cluster.rollout_workers)
    ranks = ranks if trains else 0
    width = tensor_parallel(config)
    devices: tuple[Devices, ...]
    if local:
        rest = Devices(first=1, count=width - 1, ranks=0, engines=1)
        devices = (Devices(first=0, count=1, ranks=ranks, engines=1), *([rest] if width > 1 else []))
    elif cluster.colocate and trains:
        devices = (Devices(first=0, count=max(ranks, engines * width), ranks=ranks, engines=engines),)
    else:
        beside = Devices(first=ranks, count=engines * width, ranks=0, engines=engines)
        devices = (*([Devices(first=0, count=ranks, ranks=ranks, engines=0)] if trains else []), beside)
    return DevicePlan(
        cluster=cluster.name,
        engine=config.engine.name,
        ranks=ranks,
        engines=engines,
        tensor_parallel=width,
        on="cuda" if machine.cuda else "cpu",
        devices=devices,
        replicas=config.policy.replicas if ranks else 1,
    )


def shards_in_words(config: Config, machine: Machine) -> str:
    """Say what `cluster.check.shards_over_nodes` says, with ranks on full nodes; empty where nodes are not known."""
    if not machine.cuda or machine.devices is None or machine.nodes is None:
        return ""
    each = machine.devices // machine.nodes
    return shards_over_nodes(config, [rank // each for rank in range(plan_devices(config, machine).ranks)])


def check_placement(config: Config, machine: Machine, *, trains: bool = True) -> list[str]:
    """Whether there are devices enough, with all devices of an engine on one node."""
    plan = plan_devices(config, machine, trains=trains)
    if not machine.cuda or machine.devices is None:
        return []
    if plan.n_devices <= machine.devices:
        return _engines_over_nodes(plan, machine)
    local, beside = plan.cluster == "local", trains and plan.cluster != "local" and not config.cluster.colocate
    counts = {"cluster.policy_workers": plan.ranks, "cluster.rollout_workers": plan.engines}
    if local:
        counts = {"engine.params.tensor_parallel": plan.tensor_parallel}
    keys = [f"{key}={count}" for key, count in counts.items() if count > 1]
    advice = [f"lower {(' or ' if beside else ' and ').join(keys)}"] if keys else []
    if beside and could_colocate(config):
        advice.append("set cluster.colocate=true")
    return [
        f"cluster: {_workers(plan.ranks, plan.engines, ' and ')} need {plan.n_devices} devices"
        f"{' at once' if beside else ''}, and the machine has {machine.devices}; "
        f"{', or '.join([*advice, 'take a machine with more'])}"
    ]


def _engines_over_nodes(plan: DevicePlan, machine: Machine) -> list[str]:
    """The problem that engines have no room: Ray reserves all devices of one together, on one node
    (`cluster/ray/placement.py`). Ranks with other devices fill nodes one after another. None where nodes are not known.
    """
    if machine.devices is None or machine.nodes is None or plan.tensor_parallel == 1:
        return []
    each, taken = machine.devices // machine.nodes, plan.ranks if plan.devices[-1].ranks == 0 else 0
    free = [each - min(each, max(0, taken - node * each)) for node in range(machine.nodes)]
    room = sum(devices // plan.tensor_parallel for devices in free)
    if room >= plan.engines:
        return []
    return [
        f"engine.params.tensor_parallel={plan.tensor_parallel}: all devices of an engine are on one node, of {each} "
        f"devices here, so there is room for {room} of {_many(plan.engines, 'engine')}; allowed: at most {each}, best "
        "a number that divides it"
    ]


def all_devices(config: Config, machine: Machine) -> ClusterConfig | None:
    """`cluster` for a run that is in one process now, so that it uses every GPU of the machine; or None."""
    width, devices = tensor_parallel(config), machine.devices or 1
    if not machine.cuda or config.cluster.name != "local" or devices == 1 or devices % width:
        return None
    return replace(
        config.cluster,
        name="ray",
        policy_workers=devices,
        rollout_workers=devices // width,
        colocate=not config.train.staleness,
    )


def idle_devices(config: Config, machine: Machine, *, trains: bool = True) -> str:
    """Name the devices that the plan leaves unused, and a setting that would use them; empty without such devices."""
    used = plan_devices(config, machine, trains=trains).n_devices
    if not machine.cuda or machine.devices is None or used >= machine.devices:
        return ""
    idle = f"{machine.devices - used} of {machine.devices} GPUs would be idle"
    keys = ["cluster.policy_workers"] * trains + ["cluster.rollout_workers"]
    if config.cluster.name == "local":
        return f"{idle}: with cluster=ray {' and '.join(keys)} take more than one"
    return f"{idle}: raise {' or '.join(keys)}"


def threads_in_words(config: Config, machine: Machine) -> str:
    """How many threads a policy rank computes with under Ray (`cluster/ray/placement.py` counts them). Empty in one
    process, which has all cores.
    """
    run, cluster = config.run, config.cluster
    if cluster.name == "local":
        return ""
    if run.deterministic or run.threads:
        return f"{run.threads or 1} of a policy rank ({'run.threads' if run.threads else 'run.deterministic=true'})"
    if set_by_user := os.environ.get("OMP_NUM_THREADS"):
        return f"{set_by_user} of a policy rank (OMP_NUM_THREADS)"
    cores, workers = os.cpu_count() or 1, cluster.policy_workers + cluster.rollout_workers
    if cluster.address is None and machine.written is None:
        return (
            f"{max(1, cores // workers)} of a policy rank ({cores} cores, {_many(workers, 'worker')}; run.threads=null)"
        )
    return "of a policy rank its part of its node's cores, equal for all workers there (run.threads=null)"


def check_machine(config: Config, machine: Machine) -> list[str]:
    """Settings that contradict the GPUs that `--on` names. What concerns this machine is checked elsewhere."""
    if machine.written is None:
        return []
    who, device = f"--on {machine.written}: these are GPUs", config.model.device
    problems = [f"{who}, and model.device=cpu uses none; set auto or cuda"] if device == "cpu" else []
    if config.run.deterministic:
        problems.append(f"{who}, and run.deterministic=true holds on CPU only; set false")
    return problems


def tensor_parallel(config: Config) -> int:
    """Devices of one engine; 1 for an engine that has no such option."""
    return int(getattr(config.engine.params, "tensor_parallel", 1))


def _workers(ranks: int, engines: int, between: str, replicas: int = 1) -> str:
    copies = f" ({replicas} replicas of {ranks // replicas})" if replicas > 1 else ""
    policy = [f"{_many(ranks, 'policy rank')}{copies}"] if ranks else []
    return between.join([*policy, _many(engines, "rollout worker")])


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
