"""Rollout methods: for branch policies that do not run group by group.

A branch policy may have a function `rollout_method()`; the worker then lets the method that it returns run its groups.
Other parts of the worker that a method uses are not part of the contract and may change in any version.
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
    """Runs the groups of a worker's share of a step, all together.

    Under Ray a worker then gets its complete share at once. Without a deadline of the step, the share may take as long
    as the rollouts of one group that start one after the other.
    """

    def problems(self, config: Config, step: RolloutStep, capabilities: frozenset[Capability]) -> Iterable[str]:
        """Settings that exclude this method, found before anything starts; `capabilities` are the engine's."""
        ...

    def join(self, worker: RolloutWorker) -> None:
        """Run groups for this worker from now on. Raises `ConfigError` if its tools do not fit."""
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
