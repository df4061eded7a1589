"""The actors, which are the workers' processes: what they are given, and what the driver may call.

They are thin: each holds a part of the in-process backend. `ping` is answered by a thread of its own, which tells a
process that computes from one that is stuck. Errors are raised by methods, never by `__init__`: only a method's error
reaches the driver as it was.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import ObjectRef, cloudpickle

from ramet.cluster.local import LocalRollouts
from ramet.cluster.ray.driver_environment import DriverEnvironment
from ramet.cluster.ray.weights import Bucket, buckets, tensors
from ramet.components.build import build_branch_policy
from ramet.components.services import RunServices
from ramet.components.toolbox import Schemas
from ramet.config.schema import Config, RunConfig
from ramet.engines.counters import merged
from ramet.engines.protocol import EngineInfo
from ramet.engines.sleeping import Sleeper
from ramet.models.loading import build_encoder
from ramet.models.torch_setup import set_up_torch
from ramet.policy.batching.batch import Floats, Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.critic import CriticWorker
from ramet.policy.distributed.ranks import join_ranks
from ramet.policy.spec import CriticSpec, PolicySpec
from ramet.policy.worker import PolicyWorker
from ramet.rollout.plan import RolloutPlan
from ramet.rollout.tools.stats import ToolStats, tool_metrics
from ramet.tracking.log import make_records_harmless
from ramet.types import Group, Task

HEALTH = "health"  # concurrency group of pings
SAVE = "save"  # of writing checkpoints while training continues
MAX_LOG_LINES = 10_000  # kept for the next ping


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of a worker's log. `level` is one of `logging`'s."""

    logger: str
    level: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorProcess:
    """Where a worker runs."""

    node: str  # address
    pid: int
    devices: tuple[str, ...]  # GPUs that Ray gave it


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSetup:
    """What a rollout worker starts with."""

    config: Config
    branching: bool
    services: RunServices
    tool_sets: Mapping[str, Schemas]  # as opened before the start


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySetup:
    """What a policy rank starts with."""

    run: RunConfig
    timeout_s: float
    spec: PolicySpec
    critic: CriticSpec | None
    rank: int
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a rollout worker has counted since the last call, in a form that adds up over workers."""

    tools: dict[str, ToolStats]
    engine: dict[str, float]


def total_metrics(found: Sequence[Counts]) -> dict[str, float]:
    """The metrics of all workers together."""
    tools: dict[str, ToolStats] = {}
    for counts in found:
        for name, stats in counts.tools.items():
            tools.setdefault(name, ToolStats()).add(stats)
    return {**tool_metrics(tools), **merged([counts.engine for counts in found])}


def node_address() -> str:
    """This node's address."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


class _LogBuffer(logging.Handler):
    """Keeps lines for the next ping; the oldest are dropped if there are too many."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=MAX_LOG_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(LogLine(logger=record.name, level=record.levelno, text=self.format(record)))

    def take(self) -> list[LogLine]:
        return [self._lines.popleft() for _ in range(len(self._lines))]


class Actor:
    """What all workers can do. `setup` is pickled: it may need modules that only `driver` makes importable here."""

    def __init__(self, driver: DriverEnvironment, setup: bytes, devices: Sequence[str] | None) -> None:
        driver.apply()
        if devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        self._driver = driver
        self._setup = setup
        self._log = _LogBuffer()
        make_records_harmless()  # Ray keeps the log in files that other users can read
        handlers = [self._log, logging.StreamHandler()]
        logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=handlers, force=True)
        logging.getLogger("ramet").setLevel(driver.log_level)

    @ray.method(concurrency_group=HEALTH)
    def process(self) -> ActorProcess:
        context = ray.get_runtime_context()
        devices = context.get_accelerator_ids().get("GPU", [])
        return ActorProcess(node=node_address(), pid=os.getpid(), devices=tuple(map(str, devices)))

    @ray.method(concurrency_group=HEALTH)
    def ping(self) -> list[LogLine]:
        """Lines logged since the last ping."""
        return self._log.take()

    def _read_setup(self) -> Any:
        """The setup. Raises `ConfigErrors` if this node differs from the driver's."""
        self._driver.check(node_address())
        return cloudpickle.loads(self._setup)


class RolloutActor(Actor):
    """One engine and its scheduler, in one event loop."""

    async def start(self) -> EngineInfo:
        setup: RolloutSetup = self._read_setup()
        set_up_torch(setup.config.run)
        policy = build_branch_policy(setup.config) if setup.branching else None
        self.rollouts = await LocalRollouts.open(
            setup.config,
            build_encoder(setup.config),
            services=setup.services,
            branch_policy=policy,
            expected=setup.tool_sets,
        )
        return self.rollouts.info

    async def run_group(self, task: Task, name: str, step: int, plan: RolloutPlan, deadline_s: float) -> Group:
        """One group. `name` is unique among the step's tasks, `deadline_s` is what is left of the step's time."""
        rollouts = self.rollouts
        groups = await rollouts.worker.run(
            [task],
            step=step,
            plan=plan,
            version=rollouts.version,
            newest=lambda: rollouts.version,
            names=[name],
            deadline_s=deadline_s,
        )
        return groups[0]

    async def update_weights(self, weights: list[ObjectRef[Bucket]], version: int, in_flight: bool) -> int:
        """Returns the version that the engine reports afterwards."""
        found = tensors(await asyncio.gather(*weights))
        await self.rollouts.update_weights(found, version, in_flight=in_flight)
        return self.rollouts.engine.policy_version

    async def counts(self) -> Counts:
        return Counts(tools=self.rollouts.worker.take_tool_stats(), engine=dict(self.rollouts.engine.metrics()))

    async def sleep(self) -> bool:
        """False: the engine cannot."""
        if not isinstance(self.rollouts.engine, Sleeper):
            return False
        await self.rollouts.engine.sleep()
        return True

    async def wake(self) -> None:
        if isinstance(self.rollouts.engine, Sleeper):
            await self.rollouts.engine.wake()

    async def close(self) -> None:
        await self.rollouts.close()


class PolicyActor(Actor):
    """One rank of the policy, and of the critic if there is one."""

    def rendezvous(self) -> str:
        """An address for torch's rendezvous of all ranks, if this is the first: a port that is free now."""
        with socket.socket() as found:
            found.bind(("", 0))
            return f"tcp://{node_address()}:{found.getsockname()[1]}"

    def start(self, address: str | None) -> None:
        """`address` is the rendezvous; None if there is one rank."""
        setup: PolicySetup = self._read_setup()
        set_up_torch(setup.run)
        if address is not None:
            join_ranks(rank=setup.rank, world_size=setup.world_size, address=address, timeout_s=setup.timeout_s)
        ranks = {"rank": setup.rank, "world_size": setup.world_size}
        self.rank = setup.rank
        self.policy = PolicyWorker(setup.spec, **ranks)
        self.critic = None if setup.critic is None else CriticWorker(setup.critic, **ranks)

    def logprobs(self, rows: Sequence[Row]) -> list[Floats]:
        return self.policy.logprobs(rows)

    def reference_logprobs(self, rows: Sequence[Row]) -> list[Floats]:
        return self.policy.reference_logprobs(rows)

    def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        return self.policy.update(batch, step)

    def values(self, rows: Sequence[Row]) -> list[Floats]:
        assert self.critic is not None, "no critic was built: no algorithm needs values"
        return self.critic.values(rows)

    def update_critic(self, batch: TrainBatch, step: int) -> dict[str, float]:
        assert self.critic is not None, "no critic was built: no algorithm needs values"
        return self.critic.update(batch, step)

    def weights(self) -> list[ObjectRef[Bucket]]:
        """Put into the object store by the first rank; the others help to gather them and return nothing."""
        if self.rank == 0:
            return [ray.put(bucket) for bucket in buckets(self.policy.changed_weights())]
        for _ in self.policy.changed_weights():
            pass
        return []

    def stage(self) -> None:
        for worker in self._workers:
            worker.stage()

    @ray.method(concurrency_group=SAVE)
    def write_staged(self, folder: Path) -> None:
        for worker in self._workers:
            worker.write_staged(folder)

    def load(self, folder: Path) -> None:
        for worker in self._workers:
            worker.load(folder)

    def export(self, folder: Path) -> None:
        self.policy.export(folder)

    @property
    def _workers(self) -> list[PolicyWorker | CriticWorker]:
        return [self.policy] if self.critic is None else [self.policy, self.critic]
