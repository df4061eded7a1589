"""The driver's end of one actor: calls with a name and a deadline, and errors in the words of Ramet."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ramet.cluster.ray.actor import HEALTH, SAVE, Hello
from ramet.cluster.ray.driver_environment import DriverEnvironment
from ramet.cluster.ray.errors import translated
from ramet.cluster.ray.placement import PlacementSlot
from ramet.errors import InfraError

logger = logging.getLogger(__name__)


class RayWorker:
    """One actor. `name` says kind and number, as in `policy rank 1`."""

    def __init__(
        self, name: str, kind: type[Any], seat: PlacementSlot, job: bytes, devices: tuple[str, ...] | None
    ) -> None:
        """The actor is asked for; `meet` waits for it."""
        surroundings = DriverEnvironment.here()
        self.name = name
        self.hello: Hello | None = None
        self.actor = (
            ray.remote(concurrency_groups={HEALTH: 1, SAVE: 1})(kind)  # type: ignore[call-overload]
            .options(
                num_cpus=seat.cpus,
                num_gpus=seat.gpus,
                max_restarts=0,  # a new process has none of the state; whoever owns the worker makes a new one
                scheduling_strategy=PlacementGroupSchedulingStrategy(seat.group, seat.bundle),
                runtime_env={"env_vars": surroundings.settings},
            )
            .remote(surroundings, job, devices)
        )

    def __str__(self) -> str:
        return self.name if self.hello is None else f"{self.name} (node {self.hello.node}, pid {self.hello.pid})"

    async def meet(self, timeout_s: float) -> Hello:
        """Wait until its process is there."""
        self.hello = await self.call("hello", timeout_s=timeout_s)
        logger.debug("%s has begun", self)
        return self.hello

    async def call(self, method: str, *arguments: Any, timeout_s: float, key: str = "cluster.timeout_s") -> Any:
        """What the method returns. Raises its error; `WorkerLost` if the process is gone, `InfraError` if it is late.

        `key` is the setting that `timeout_s` comes from. Cancelling this cancels the method.
        """
        ref = getattr(self.actor, method).remote(*arguments)
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                return await asyncio.wrap_future(ref.future())
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):  # it has ended, or its process has
                ray.cancel(ref)
            raise
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise InfraError(f"{self} did not finish `{method}` within {timeout_s:g} s ({key})") from error
        except Exception as error:
            raise translated(error, str(self)) from None

    def kill(self) -> None:
        """Now; whatever was asked of it ends with `WorkerLost`."""
        with contextlib.suppress(Exception):  # it is dead already
            ray.kill(self.actor, no_restart=True)
