"""The released branch rule: a draw that the change of entropy shifts, without a threshold of the entropy.

A copy is made if clip(U - w * (H - H_base), 0, 1) <= p, so with probability clip(p + w * (H - H_base), 0, 1) for p < 1.
"""

from __future__ import annotations

from ramet_release.config import ArpoReleaseConfig, ReleaseRule
from ramet_release.policy import BranchDraw, LockstepPolicy


class ArpoRelease(LockstepPolicy):
    """The branch policy `arpo_release`."""

    def __init__(self, config: ArpoReleaseConfig) -> None:
        self.config = config
        self.beam_size = config.beam_size
        self.initial_rollouts = config.initial_rollouts

    def branches(self, attempt: BranchDraw) -> bool:
        if self.config.rule is ReleaseRule.THRESHOLD_AND_DRAW:
            is_high = attempt.now > self.config.entropy_weight * attempt.base
            return is_high and attempt.draw < self.config.branch_probability
        return self.score(attempt) <= self.config.branch_probability

    def score(self, attempt: BranchDraw) -> float:
        """The shifted draw in [0, 1]; 1 if an entropy is NaN."""
        return max(0.0, min(1.0, attempt.draw - self.config.entropy_weight * (attempt.now - attempt.base)))
