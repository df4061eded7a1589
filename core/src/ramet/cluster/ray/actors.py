"""The actors, which are the workers' processes. They are thin: each holds a part of the in-process backend."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import ray
from ray import ObjectRef

from ramet.cluster.local import LocalRollouts, first_progress
from ramet.cluster.ray.actor_base import SAVE, Actor, Counts, PolicySetup, RolloutSetup, node_address
from ramet.cluster.ray.weights import Bucket, buckets, tensors
from ramet.components.build import Components, needs_rewards, start_rewards
from ramet.engines.protocol import EngineInfo, Sleeper
from ramet.models.loading import build_encoder
from ramet.models.torch_setup import set_up_torch
from ramet.policy.batching.rows import Floats, Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.critic import CriticWorker
from ramet.policy.distributed.ranks import join_ranks
from ramet.policy.worker import PolicyWorker
from ramet.rollout.plan import RolloutPlan
from ramet.rollout.record import GroupRecord
from ramet.types import Group, Task


class RolloutActor(Actor):
    """One engine and its scheduler, in one event loop."""

    async def start(self) -> EngineInfo:
        setup: RolloutSetup = self._read_setup()
        set_up_torch(setup.config.run)
        components = Components(setup.config)
        self.scorer = components.scorer if setup.branching and needs_rewards(components.branch_policy) else None
        try:
            if self.scorer is not None:
                await start_rewards(self.scorer.rewards, setup.services)
            self.rollouts = await LocalRollouts.open(
                setup.config,
                build_encoder(setup.config),
                components=components,
                services=setup.services,
                branching=setup.branching,
                expected=setup.tool_sets,
            )
        except BaseException:
            if self.scorer is not None:
                await self.scorer.aclose()
            raise
        self._progress = self.rollouts.progress
        return self.rollouts.info

    async def run_group(
        self,
        task: Task,
        name: str,
        step: int,
        plan: RolloutPlan,
        deadline_s: float,
        stored: GroupRecord | None = None,
    ) -> Group:
        """One group. `name` is unique among the step's tasks, `deadline_s` is what is left of the step's time, `stored`
        what is kept of an earlier group of this task.
        """
        kept = None if stored is None else {task.id: stored}
        return (await self.run_share([task], [name], step, plan, deadline_s, kept))[0]

    async def run_share(
        self,
        tasks: Sequence[Task],
        names: Sequence[str],
        step: int,
        plan: RolloutPlan,
        deadline_s: float,
        stored: Mapping[str, GroupRecord] | None = None,
    ) -> list[Group]:
        """Several groups, in one call of the worker's `run`."""
        rollouts = self.rollouts
        return await rollouts.worker.run(
            tasks,
            step=step,
            plan=plan,
            version=rollouts.version,
            newest=lambda: rollouts.version,
            names=names,
            deadline_s=deadline_s,
            stored=stored,
        )

    async def update_weights(self, weights: list[ObjectRef[Bucket]], version: int) -> int:
        """Returns the version that the engine reports afterwards."""
        found = tensors(await asyncio.gather(*weights))
        await self.rollouts.update_weights(found, version)
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
        try:
            await self.rollouts.close()
        finally:
            if self.scorer is not None:
                await self.scorer.aclose()


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
        self._progress = partial(first_progress, self.policy, self.critic)

    def logprobs(self, rows: Sequence[Row]) -> list[Floats]:
        return self.policy.logprobs(rows)

    def reference_logprobs(self, rows: Sequence[Row]) -> list[Floats]:
        return self.policy.reference_logprobs(rows)

    def update(self, batch: TrainBatch, rows: Sequence[Row], step: int) -> dict[str, float]:
        """`batch` comes without its rows."""
        return self.policy.update(replace(batch, rows=rows), step)

    def values(self, rows: Sequence[Row]) -> list[Floats]:
        assert self.critic is not None, "no critic was built: no algorithm needs values"
        return self.critic.values(rows)

    def update_critic(self, batch: TrainBatch, rows: Sequence[Row], step: int) -> dict[str, float]:
        """`batch` comes without its rows."""
        assert self.critic is not None, "no critic was built: no algorithm needs values"
        return self.critic.update(replace(batch, rows=rows), step)

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
