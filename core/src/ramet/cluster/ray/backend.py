"""`ramet.cluster.interfaces.Backend` over Ray actors."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ramet.cluster.ray.actors import PolicyActor
from ramet.cluster.ray.played_groups import PartLost
from ramet.cluster.ray.policy import RayRanks
from ramet.cluster.ray.rollouts import RayRollouts
from ramet.cluster.ray.weight_transfers import choose
from ramet.cluster.ray.worker_pool import WorkerPool, run_together
from ramet.components.toolbox import ToolNames
from ramet.config.schema import Config
from ramet.io import repeats
from ramet.policy.advantages import GroupToLearn, LearnedGroup
from ramet.policy.spec import CriticSpec, PolicySpec
from ramet.rollout.method import RolloutMethod
from ramet.types import AdvantageEstimator

logger = logging.getLogger(__name__)


class RayBackend:
    """Policy ranks and rollout workers, and the transfer of weights between them, which bypasses the driver."""

    def __init__(self, pool: WorkerPool, policy: RayRanks, rollouts: RayRollouts) -> None:
        self.policy = policy
        self.rollouts = rollouts
        self.services = pool.services
        self._pool = pool

    @classmethod
    async def start(
        cls,
        config: Config,
        spec: PolicySpec,
        *,
        critic: CriticSpec | None = None,
        folder: Path,
        tools: ToolNames,
        shares_limiters: bool = False,
        score_s: float = 0.0,
        method: RolloutMethod | None = None,
    ) -> RayBackend:
        """Called in the main thread. Raises `ConfigError` without room for the workers, or if nodes differ."""
        pool = WorkerPool(config, with_policy=True, folder=folder, shares_limiters=shares_limiters)
        try:
            await pool.reserve()
            rollouts = RayRollouts(pool, branching=True, tools=tools, score_s=score_s, method=method)
            policy = RayRanks(pool, spec, critic)
            rollouts.workers.transfer = choose(config, policy, cuda=pool.placement.uses_gpus)
            backend = cls(pool, policy, rollouts)
            await pool.unless_failed(backend._open())
        except BaseException:
            await pool.close()
            raise
        return backend

    async def learn_groups(
        self, estimator: AdvantageEstimator, groups: Sequence[GroupToLearn], kl_coef: float
    ) -> list[LearnedGroup]:
        """Rows go from the rollout workers to the ranks; only what they report passes here."""
        parts, learned = await self._pool.unless_failed(self.rollouts.parts.learn(estimator, groups))
        try:
            await self.policy.call(PolicyActor.fetch, parts, kl_coef)
        except PartLost as error:  # with its worker or node; the driver can get the groups, and no rank has begun
            repeats.warn(logger, "rows are lost", "%s: the driver makes the rows of the step", error, by_step=True)
            part = await self.rollouts.parts.learn_here(estimator, groups)
            await self.policy.call(PolicyActor.fetch, (part.batches,), kl_coef)
            learned = part.groups
        return learned

    async def sync_weights(self, version: int) -> None:
        await self._pool.unless_failed(self.rollouts.workers.update_weights(version))

    async def close(self) -> None:
        await self.rollouts.close()
        await self._pool.close()

    async def _open(self) -> None:
        """Start both sides at once; co-located engines after the ranks, whose GPUs they use."""
        if not self._pool.config.cluster.colocate:
            await run_together(self.policy.open(), self.rollouts.workers.open({}))
            return
        await self.policy.open()
        await self.policy.call(PolicyActor.rest)  # vLLM takes its share of the memory that is free now
        rank_devices = [rank.process.devices if rank.process is not None else () for rank in self.policy.ranks]
        devices = {
            number: tuple(device for rank in self.policy.ranks_beside(number) for device in rank_devices[rank])
            for number in range(self._pool.config.cluster.rollout_workers)
        }
        await self.rollouts.workers.open(devices)
        self.policy.before_compute = self.rollouts.workers.sleep
        self.rollouts.workers.before_wake = partial(self.policy.call, PolicyActor.rest)
