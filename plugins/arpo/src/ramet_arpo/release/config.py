"""Options of the released ARPO."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReleaseRule(StrEnum):
    """When an attempt makes a copy, by its draw U and the entropies H of the segment and H_base of the table."""

    SHIFTED_DRAW = "shifted_draw"  # clip(U - entropy_weight * (H - H_base), 0, 1) <= branch_probability: as released
    THRESHOLD_AND_DRAW = "threshold_and_draw"  # H > entropy_weight * H_base and U < branch_probability


@dataclass(kw_only=True, slots=True)
class ArpoReleaseConfig:
    """The released ARPO: names and defaults are those of its scripts. The budget is `rollout.group_size`."""

    initial_rollouts: int | None = None  # rows that start from the prompt; null: half the budget, at least one
    beam_size: int = 2  # a row is copied at most one time less in a round; 1: never
    branch_probability: float = 0.5
    entropy_weight: float = 0.2  # of the change of entropy
    rule: ReleaseRule = ReleaseRule.SHIFTED_DRAW  # threshold_and_draw: what the project's documents say instead

    def __post_init__(self) -> None:
        for name in ("initial_rollouts", "beam_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= self.branch_probability <= 1:
            raise ValueError(f"branch_probability must be in [0, 1], got {self.branch_probability:g}")
