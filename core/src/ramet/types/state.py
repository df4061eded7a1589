"""State that belongs to one rollout, of tools and of environments, and what plugins get when a run starts."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from ramet.types.task import Task

S = TypeVar("S")


class Stateful(Protocol[S]):
    """Optional, for rollout steps (environments) and tools alike. The core owns the states and closes each of them.

    `forks` says what a fork of the rollout gets:

    * `copy`: `fork(state)` as it was at the fork point. A fork is decided while its parent continues, so the core
      copies a state before the parent's next stateful call.
    * `replay`: a fresh state is opened, the recorded calls of the shared prefix are made again, and what they return is
      compared with the record; a difference masks the fork as infrastructure.
    * `none`: the state cannot be forked. Refused before the start if the branch policy can fork.
    """

    forks: Literal["copy", "replay", "none"]

    async def open(self, task: Task, seed: int) -> S:
        """A fresh state, called before the rollout's first turn (environments) or first call (tools).

        `seed` derives from the run's seed, step, task and root: a root and its forks have the same one. Never None.
        """
        ...

    async def fork(self, state: S) -> S:
        """An independent copy: what either of the two does later is not seen by the other. Only with `copy`."""
        ...

    async def close(self, state: S) -> None:
        """Release the state's resources. Called once for each state, also when its rollout is masked or cancelled."""
        ...


class Limiter(Protocol):
    """The limits of a service, shared by all workers of a run: a rate, calls at the same time, and pauses."""

    async def wait(self, n: int = 1, *, at_most_s: float | None = None) -> None:
        """Return once `n` more are allowed, in the order of arrival.

        Raises `InfraError` with `retry_after_s` as soon as it is known that this takes longer than `at_most_s`; raised
        by a tool, it makes the call wait outside its slot and time-out. None: it waits however long it takes.
        """
        ...

    async def pause(self, seconds: float, *, reason: str = "", slower: bool = False) -> None:
        """Let no caller through for so long: the service asked all callers to wait (a 429 with Retry-After), or is
        down.

        `reason` is the text of the errors that `wait` raises meanwhile. `slower` halves the rate afterwards, which
        recovers when this is not asked again: it doubles every minute, up to its first value.
        """
        ...

    def place(self, held_at_most_s: float) -> AbstractAsyncContextManager[None]:
        """Take one of the limiter's `concurrent` places during a call, once one is free.

        A place that is kept for longer is given to others, since the process that took it may be gone.
        """
        ...


class Services(Protocol):
    """Services for tools, tool sets, rewards and benchmarks from `async def start(self, services) -> None` on.

    `start` is called once in each process that uses the component, before its first call.
    """

    @property
    def folder(self) -> Path:
        """A folder of the run for files that the component keeps; shared by all workers of this machine."""
        ...

    @property
    def seed(self) -> int:
        """The seed of the run."""
        ...

    def limiter(self, name: str, per_s: float, concurrent: int | None = None) -> Limiter:
        """The limiter of this name, shared by all workers of the run. The same name must ask for the same limits.

        `concurrent`: how many calls may run at the same time (`Limiter.place`); None: as many as ask.
        """
        ...
