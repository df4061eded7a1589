"""State that belongs to one rollout, of tools and of environments, and what plugins get when a run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol, TypeVar

from ramet.types.task import Task

S = TypeVar("S")


class Stateful(Protocol[S]):
    """Optional, for rollout steps (environments) and tools alike. The core owns the states and closes each of them.

    `forks` says what a fork of the rollout gets:

    * `copy`: `fork(state)` as it was at the fork point. A fork is decided while its parent goes on, so the core copies
      a state before the parent's next stateful call.
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
        """Let go of what the state holds. Called once for each state, also when its rollout is masked or cancelled."""
        ...


class Limiter(Protocol):
    """A rate shared by all workers of a run."""

    async def wait(self, n: int = 1) -> None:
        """Return once `n` more are allowed, in the order of arrival."""
        ...

    async def pause(self, seconds: float) -> None:
        """Let nobody through for so long: the service asked all callers to wait (a 429 with Retry-After)."""
        ...


class Services(Protocol):
    """What tools, tool sets and rewards may use from `async def start(self, services) -> None` on.

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

    def limiter(self, name: str, per_s: float) -> Limiter:
        """The limiter of this name, shared by all workers of the run. The same name must ask for the same rate."""
        ...
