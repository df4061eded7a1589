"""The released branch rule and number of roots.

    s = clip((U + w * (H - H_base)) * max(0, 1 - 0.05 c), 0, 1)         a copy is made if s >= p
    roots = clip(floor(M * sigmoid(0.5 * (H_root - mean H))) + 1, 1, M)

So a copy is made with probability clip(1 - p / max(0, 1 - 0.05 c) + w * (H - H_base), 0, 1): the draw is the other way
round than ARPO's. c counts rounds in which the prompt got any row, fresh ones included. H are the entropies of the
segments of a rollout that is thrown away, the first one, which H_root resembles, among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from ramet_release.config import AepoReleaseConfig
from ramet_release.policy import BranchDraw, LockstepPolicy

PENALTY = 0.05
GAIN = 0.5


class AepoRelease(LockstepPolicy):
    """The branch policy `aepo_release`."""

    def __init__(self, config: AepoReleaseConfig) -> None:
        self.config = config
        self.beam_size = config.beam_size
        self.initial_rollouts = config.initial_rollouts
        self.probe_tokens = config.initial_entropy_tokens if config.enable_dynamic_rollouts else None

    def branches(self, attempt: BranchDraw) -> bool:
        return self.score(attempt) >= self.config.branch_probability

    def score(self, attempt: BranchDraw) -> float:
        """The shifted and penalised draw in [0, 1]; 1 if an entropy is NaN."""
        shifted = attempt.draw + self.config.entropy_weight * (attempt.now - attempt.base)
        return max(0.0, min(1.0, shifted * max(0.0, 1.0 - PENALTY * attempt.consecutive)))

    def monitored_roots(self, budget: int, root: float, segments: Sequence[float]) -> int:
        difference = root - (fmean(segments) if segments else root)
        share = 1 / (1 + math.exp(-GAIN * difference))
        return max(1, min(budget, int(budget * share) + 1))
