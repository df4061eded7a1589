"""The seam for branch policies that do not play group by group.

A branch policy may have a function `rollout_method()`; the worker then asks the method that it returns to play its
groups. What a method uses of the worker beside this is not part of the contract and may change in any version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ramet.config.schema import Config
from ramet.engines.protocol import Capability
from ramet.rollout.completion import Versions
from ramet.rollout.jobs import GroupJob
from ramet.rollout.plan import ResolvedPlan, StepDeadline
from ramet.rollout.progress import RunCounts
from ramet.types import BranchPolicy, Group, RolloutStep

if TYPE_CHECKING:
    from ramet.rollout.worker import RolloutWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A worker's share of a step: the groups of one call. `done` takes each group as soon as it is complete."""

    step: int
    jobs: Sequence[GroupJob]
    plan: ResolvedPlan
    deadline: StepDeadline
    versions: Versions | None  # of the weights that may sample; None: any
    counts: RunCounts
    done: Callable[[Group], None]


class RolloutMethod(Protocol):
    """Plays the groups of a worker's share of a step, all together.

    Under Ray a worker is then given its whole share at once, and where the step has no deadline the share may take as
    long as the rollouts of one group that start one after the other.
    """

    def problems(self, config: Config, step: RolloutStep, capabilities: frozenset[Capability]) -> Iterable[str]:
        """What the run cannot have with this method, before anything starts; `capabilities` are its engine's."""
        ...

    def join(self, worker: RolloutWorker) -> None:
        """Play for this worker from now on. Raises `ConfigError` if its tools do not fit."""
        ...

    async def play(self, share: Share) -> list[Group]:
        """All groups in the order of the jobs, none if the plan keeps none. Every group has exactly `group_size`
        rollouts, masked ones included. Raises `PluginError` and `ConfigError`.
        """
        ...


def rollout_method(policy: BranchPolicy) -> RolloutMethod | None:
    """The policy's own method; None: group by group."""
    factory: Callable[[], RolloutMethod] | None = getattr(policy, "rollout_method", None)  # may be left out
    return None if factory is None else factory()
