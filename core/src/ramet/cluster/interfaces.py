"""The interface of a job to the workers of a run, wherever they run.

Methods are coarse, and their arguments and results pickle. `local` has everything in this process, `ray/` in actors;
jobs import this module and `launch`, which starts them, and never one of those.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from ramet.components.services import RunServices
from ramet.engines.protocol import EngineInfo
from ramet.policy.advantages import GroupToLearn, LearnedGroup
from ramet.policy.progress import PassProgress
from ramet.policy.rank import PolicyRank
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.progress import RolloutProgress
from ramet.rollout.record import GroupRecord
from ramet.types import AdvantageEstimator, Group

P = ParamSpec("P")
T = TypeVar("T")
OnGroup = Callable[[Group], None]
LearnGroups = Callable[[AdvantageEstimator, Sequence[GroupToLearn], float], Awaitable[list[LearnedGroup]]]
Recorder = Callable[[Path, Sequence[GroupRecord]], Awaitable[None]]


class Rollouts(Protocol):
    """The rollout side: one or several engines, each with its own scheduler."""

    @property
    def info(self) -> EngineInfo:
        """Description of one engine; all are equal."""
        ...

    @property
    def recorder(self) -> Recorder | None:
        """Writer of a step's record as a folder of parts, where the groups are; None: they are in this process."""
        ...

    def group_size(self, plan: RolloutPlan) -> int:
        """Rollouts per task under this plan."""
        ...

    async def run(self, request: RolloutRequest, *, on_group: OnGroup | None = None) -> list[Group]:
        """Groups in the order of the tasks, none if the plan keeps none; `on_group` is called with each as soon as it
        is complete.

        A reply by other weights than the engine was given last masks its rollout; after in-flight updates it may be by
        any weights since the start of the rollout. Raises `InfraError` if too many workers are lost.
        """
        ...

    async def metrics(self) -> dict[str, float]:
        """Return the metrics of all rollouts since the last call, with what tools and engines did for them."""
        ...

    def uncounted(self) -> AbstractAsyncContextManager[None]:
        """Work of tools and engines while the context is open is in no `metrics`; earlier work is. For rollouts of
        plans with `counted` False.
        """
        ...

    def progress(self) -> RolloutProgress:
        """Return the progress of the calls of `run` that have not returned; from any thread. May be a second old."""
        ...

    async def close(self) -> None: ...


class Ranks(Protocol):
    """The training side: all ranks of the policy, and of the critic if there is one."""

    async def call(self, function: Callable[Concatenate[PolicyRank, P], T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a method of `PolicyRank` on all ranks, one call after the other; returns what the first rank does."""
        ...

    def write_staged(self, folder: Path) -> None:
        """Call `PolicyRank.write_staged` on all ranks, from any thread."""
        ...

    def verify(self, folder: Path) -> list[str]:
        """Problems of a checkpoint, as of `store.verify`; every rank reads its own files. From any thread but the event
        loop's.
        """
        ...

    def progress(self) -> PassProgress | None:
        """The progress of the first rank; from any thread. May be a second old. None: nothing that is counted."""
        ...


class Backend(Protocol):
    """The two sides of a training run, and the transfer of weights between them."""

    @property
    def rollouts(self) -> Rollouts: ...

    @property
    def policy(self) -> Ranks: ...

    @property
    def services(self) -> RunServices:
        """Services for components that run in the driver."""
        ...

    @property
    def learn_groups(self) -> LearnGroups | None:
        """Lets the processes that have the groups make their rows and advantages, and gives those to all ranks
        (`PolicyRank.take`, with the KL coefficient). Returns one entry for each group; raises as `learn_group`. None:
        groups are in this process.
        """
        ...

    async def sync_weights(self, version: int) -> None:
        """Give the policy's weights to every engine. With `train.staleness` running requests continue under them."""
        ...

    async def close(self) -> None: ...
