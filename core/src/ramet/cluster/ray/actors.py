"""What the workers' processes do. The actors are thin: each holds a part of the in-process place."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import ray
from ray import ObjectRef

from ramet.cluster.local import LocalRollouts
from ramet.cluster.ray.actor import SAVE, Actor, node_address
from ramet.cluster.ray.jobs import Counts, PolicyJob, RolloutJob
from ramet.cluster.ray.weights import Bucket, buckets, tensors
from ramet.components.build import build_branch_policy
from ramet.engines.protocol import EngineInfo
from ramet.engines.sleeping import Sleeper
from ramet.models.loading import build_encoder
from ramet.models.torch_setup import set_up_torch
from ramet.policy.batching.batch import Floats, Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.critic import CriticWorker
from ramet.policy.distributed.ranks import join_ranks
from ramet.policy.worker import PolicyWorker
from ramet.rollout.plan import RolloutPlan
from ramet.types import Group, Task


class RolloutActor(Actor):
    """One engine and its scheduler, in one event loop."""

    async def start(self) -> EngineInfo:
        job: RolloutJob = self._begin()
        set_up_torch(job.config.run)
        policy = build_branch_policy(job.config) if job.branching else None
        self.rollouts = await LocalRollouts.open(
            job.config,
            build_encoder(job.config),
            services=job.services,
            branch_policy=policy,
            expected=job.tool_sets,
        )
        return self.rollouts.info

    async def play(self, task: Task, name: str, step: int, plan: RolloutPlan, deadline_s: float) -> Group:
        """One group. `name` is the task's among all of the step's, `deadline_s` what is left of the step's time."""
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

    async def update(self, weights: list[ObjectRef[Bucket]], version: int, in_flight: bool) -> int:
        """Returns the version that the engine says it serves."""
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

    def address(self) -> str:
        """Where the ranks may meet, if this is the first: a port that is free now."""
        with socket.socket() as found:
            found.bind(("", 0))
            return f"tcp://{node_address()}:{found.getsockname()[1]}"

    def start(self, address: str | None) -> None:
        """`address` None: there is one rank."""
        job: PolicyJob = self._begin()
        set_up_torch(job.run)
        if address is not None:
            join_ranks(rank=job.rank, world_size=job.world_size, address=address, timeout_s=job.timeout_s)
        ranks = {"rank": job.rank, "world_size": job.world_size}
        self.rank = job.rank
        self.policy = PolicyWorker(job.spec, **ranks)
        self.critic = None if job.critic is None else CriticWorker(job.critic, **ranks)

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
