"""Decisions by the rules of the released code: how many rollouts a prompt starts with, and whether one is copied."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from ramet import BranchAction, BranchEvent, ConfigError, GroupView, Need, Start, StartRoots

if TYPE_CHECKING:
    from ramet_release.internals import RolloutMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchDraw:
    """One attempt to copy a rollout. Entropies come from `segment_entropy`.

    `base` is the table's value for this place in the batch; `consecutive` counts the rounds without a break in which
    the prompt got new rollouts, whatever their kind.
    """

    draw: float  # uniform in [0, 1)
    now: float  # entropy of the segment that has just ended
    base: float
    consecutive: int = 0


class LockstepPolicy(ABC):
    """A branch policy with rounds: where it is chosen, `LockstepMethod` runs the rollouts.

    `beam_size`: a rollout is copied at most one time less in a round. `initial_rollouts`: None is half the budget, at
    least one. `probe_tokens`: not None if each prompt is first sampled this far, and then gets a full rollout whose
    tokens are thrown away; `monitored_roots` gets their entropies.
    """

    needs: frozenset[Need] = frozenset({Need.ENTROPY})
    beam_size: int
    initial_rollouts: int | None
    probe_tokens: int | None = None

    def rollout_method(self) -> RolloutMethod:
        from ramet_release.method import LockstepMethod  # which imports this module

        return LockstepMethod(self)

    @abstractmethod
    def branches(self, attempt: BranchDraw) -> bool:
        """Whether this attempt makes a copy."""

    def monitored_roots(self, budget: int, root: float, segments: Sequence[float]) -> int:
        """How many rollouts a prompt starts with, by the entropies of its probe and of the thrown away rollout."""
        return self.roots(budget)

    def roots(self, budget: int) -> int:
        """How many rollouts a prompt starts with that was not probed."""
        return min(budget, max(1, budget // 2) if self.initial_rollouts is None else self.initial_rollouts)

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        """Start the roots; called before a run starts, as for every branch policy. `branches` decides forks, in rounds.

        Raises `ConfigError` if more rollouts are to start than there is budget.
        """
        if not isinstance(event, Start):
            return []
        configured = self.initial_rollouts
        if configured is not None and self.probe_tokens is None and configured > group.budget:
            raise ConfigError(
                f"branch_policy.params.initial_rollouts: {configured} is more than rollout.group_size, {group.budget}"
            )
        return [StartRoots(n=self.roots(group.budget))]
