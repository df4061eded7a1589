"""The driver's handle of one actor: calls with a deadline, and Ray's errors as Ramet's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, overload

import ray
from ray import exceptions
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ramet.cluster.ray.actor_base import HEALTH, SAVE, Actor, ActorProcess
from ramet.cluster.ray.driver_environment import DriverEnvironment
from ramet.cluster.ray.placement import PlacementSlot
from ramet.errors import InfraError, RametError
from ramet.policy.progress import PassProgress
from ramet.rollout.progress import RolloutProgress

logger = logging.getLogger(__name__)
MAX_CAUSE_CHARS = 300
ALLOCATOR, OLD_ALLOCATOR = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LOST = (
    exceptions.RayActorError,
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.OutOfMemoryError,
    exceptions.LocalRayletDiedError,
)


P = ParamSpec("P")
T = TypeVar("T")


class Timeout(NamedTuple):
    """How long a call may take, and the setting of it."""

    seconds: float
    key: str = "cluster.timeout_s"


class WorkerLost(InfraError):
    """A worker's process is gone, or does not answer."""


class WorkerLate(InfraError):
    """A worker has not finished a call in time."""


class RayWorker:
    """One actor. `name` is kind and number, as in `policy rank 1`."""

    def __init__(
        self, name: str, actor_class: type[Any], slot: PlacementSlot, setup: bytes, devices: tuple[str, ...] | None
    ) -> None:
        """Requests the actor; `wait_started` waits for it."""
        driver = DriverEnvironment.capture()
        self.name = name
        self.process: ActorProcess | None = None
        self.started_at = 0.0  # time.monotonic() when `process` was known
        self.progress: RolloutProgress | PassProgress | None = None  # as of its last ping
        self._passed_at = 0.0  # time.monotonic() when a ping last reported another micro-batch
        self.actor = (
            ray.remote(concurrency_groups={HEALTH: 1, SAVE: 1})(actor_class)  # type: ignore[call-overload]
            .options(
                num_cpus=slot.cpus,
                num_gpus=slot.gpus,
                max_restarts=0,  # a new process has none of the state; the owner of the worker makes a new one
                scheduling_strategy=PlacementGroupSchedulingStrategy(slot.group, slot.bundle),
                runtime_env={"env_vars": variables(actor_class.ENVIRONMENT, slot.threads, driver.settings)},
            )
            .remote(driver, setup, devices)
        )

    def __str__(self) -> str:
        return self.name if self.process is None else f"{self.name} (node {self.process.node}, pid {self.process.pid})"

    async def wait_started(self, timeout_s: float) -> ActorProcess:
        """Wait until its process runs."""
        self.process = await self.call(timeout_s, Actor.process)
        self.started_at = time.monotonic()
        logger.debug("%s has started", self)
        return self.process

    @overload
    async def call(
        self,
        timeout: Timeout | float,
        function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> T: ...

    @overload
    async def call(
        self,
        timeout: Timeout | float,
        function: Callable[Concatenate[Any, P], T],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> T: ...

    async def call(self, timeout: Timeout | float, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a method of the actor's class, which is passed itself; arguments may be Ray's references to them. Of a
        method of `two_results` the first comes, and a reference to the second.

        Raises its error; `WorkerLost` if the process is gone, `WorkerLate` if it is late: `timeout` after the call, or
        after the last pass over a micro-batch that the worker has begun since. Cancelling this cancels the method.
        """
        timeout_s, key = timeout if isinstance(timeout, Timeout) else Timeout(timeout)
        method = function.__name__
        refs = getattr(self.actor, method).remote(*arguments, **named)
        ref, *others = refs if isinstance(refs, list) else [refs]
        answer, began = asyncio.wrap_future(ref.future()), time.monotonic()
        try:
            while (remaining_s := max(began, self._passed_at) + timeout_s - time.monotonic()) > 0 and not answer.done():
                await asyncio.wait([answer], timeout=remaining_s)
            if answer.done():
                for other in others if answer.exception() is not None else ():
                    other.future()  # read, since Ray prints errors that are not read; it has the error of the first
                return (answer.result(), *others) if others else answer.result()
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):  # it has ended, or its process has
                ray.cancel(ref)
            raise
        except Exception as error:
            raise translated(error, str(self)) from None
        finally:
            answer.cancel()
        since = " of its last micro-batch" if self._passed_at > began else ""
        raise WorkerLate(f"{self} did not finish `{method}` within {timeout_s:g} s{since} ({key})")

    def note_progress(self, progress: RolloutProgress | PassProgress | None) -> None:
        """Note what a ping has answered."""
        if isinstance(progress, PassProgress) and progress != self.progress:
            self._passed_at = time.monotonic()
        self.progress = progress

    def kill(self) -> None:
        """Kill the process at once; calls that it has not answered end with `WorkerLost`."""
        with contextlib.suppress(Exception):  # it is dead already
            ray.kill(self.actor, no_restart=True)


def variables(own_variables: Mapping[str, str], threads: int | None, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the process's environment: the actor's own, its threads, and the driver's settings, which win.

    torch reads its allocator's older variable only where the newer is missing.
    """
    inherited = {
        name: value for name, value in own_variables.items() if name != ALLOCATOR or OLD_ALLOCATOR not in settings
    }
    return inherited | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)}) | dict(settings)


def translated(error: Exception, who: str) -> Exception:
    """The exception for the driver, for the error with which a call of worker `who` ended.

    The worker's own error as it was, or one that names who is lost and why in one line.
    """
    if isinstance(error, LOST):
        return WorkerLost(f"{who} is lost: {death_cause(error)}")
    if isinstance(error, exceptions.RayTaskError):
        cause = error.cause
        if isinstance(cause, LOST):
            return WorkerLost(f"{who} lost another worker: {death_cause(cause)}")
        if isinstance(cause, RametError):
            return cause
        if isinstance(cause, Exception) and not isinstance(cause, exceptions.RayError):
            cause.add_note(f"in {who}:\n{COLOUR.sub('', str(error))}")
            return cause
        return InfraError(f"{who}: {_one_line(str(cause))}")
    if isinstance(error, exceptions.RayError):
        return InfraError(f"{who}: {_one_line(str(error))}")
    return error


def death_cause(error: Exception) -> str:
    """Ray's reason for a death in one line, without ids and advice."""
    text = str(error)
    detail = re.search(r"Worker exit detail: (.*)", text, re.DOTALL)
    if detail is not None:
        text = detail[1]
    text = re.split(r"Some common causes|There are some potential|If the process was killed", text)[0]
    kept = [line for line in text.splitlines() if not line.startswith("\t")]
    first = "The actor died unexpectedly before finishing this task."
    cause = _one_line(" ".join(line for line in kept if line.strip() != first)) or "Ray gives no reason"
    if "End of file" in cause:
        return f"its process ended at once: killed (SIGKILL, out of memory) or crashed ({cause.rstrip('.')})"
    return cause


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_CAUSE_CHARS else f"{line[:MAX_CAUSE_CHARS]}…"
