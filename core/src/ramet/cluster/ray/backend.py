"""`ramet.cluster.interfaces.Backend` over Ray actors."""

from __future__ import annotations

from pathlib import Path

from ramet.cluster.ray.policy import RayPolicy
from ramet.cluster.ray.rollouts import RayRollouts
from ramet.cluster.ray.worker_pool import WorkerPool, together
from ramet.components.toolbox import ToolNames
from ramet.config.schema import Config
from ramet.policy.spec import CriticSpec, PolicySpec


class RayBackend:
    """Policy ranks and rollout workers, and the way of the weights between them: they never pass the driver."""

    def __init__(self, crew: WorkerPool, policy: RayPolicy, rollouts: RayRollouts) -> None:
        self.policy = policy
        self.rollouts = rollouts
        self.services = crew.services
        self._crew = crew

    @classmethod
    async def start(
        cls, config: Config, spec: PolicySpec, *, critic: CriticSpec | None = None, folder: Path, tools: ToolNames
    ) -> RayBackend:
        """Called in the main thread. Raises `ConfigError` if the workers find no room or no equal surroundings."""
        crew = WorkerPool(config, with_policy=True, folder=folder)
        try:
            await crew.reserve()
            place = cls(crew, RayPolicy(crew, spec, critic), RayRollouts(crew, branching=True, tools=tools))
            await crew.unless_failed(place._open())
        except BaseException:
            await crew.close()
            raise
        return place

    async def sync_weights(self, version: int, *, in_flight: bool = False) -> None:
        weights = await self.policy.weights()
        await self._crew.unless_failed(self.rollouts.update_weights(weights, version, in_flight=in_flight))

    async def close(self) -> None:
        await self.rollouts.close()
        await self._crew.close()

    async def _open(self) -> None:
        """All at once, but that co-located engines ask their ranks which GPUs they have."""
        if not self._crew.config.cluster.colocate:
            await together(self.policy.open(), self.rollouts.open({}))
            return
        await self.policy.open()
        found = [rank.hello.devices if rank.hello is not None else () for rank in self.policy.ranks]
        devices = {
            seat: tuple(device for rank in self._crew.placement.shared_ranks(seat) for device in found[rank])
            for seat in range(self._crew.config.cluster.rollout_workers)
        }
        await self.rollouts.open(devices)
        self.policy.before = self.rollouts.sleep
