"""Options of what was released."""

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


@dataclass(kw_only=True, slots=True)
class AepoReleaseConfig:
    """The released AEPO: names and defaults are those of its scripts. The budget is `rollout.group_size`."""

    enable_dynamic_rollouts: bool = False  # how many rows start is decided by a probe and a rollout thrown away
    initial_entropy_tokens: int = 50  # length of the probe
    initial_rollouts: int | None = None  # rows that start without the probe; null: half the budget, at least one
    beam_size: int = 2  # a row is copied at most one time less in a round; 1: never
    branch_probability: float = 0.5  # the draw is the other way round: a copy is made with about one minus this
    entropy_weight: float = 0.2  # of the change of entropy

    def __post_init__(self) -> None:
        for name in ("initial_rollouts", "beam_size", "initial_entropy_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= self.branch_probability <= 1:
            raise ValueError(f"branch_probability must be in [0, 1], got {self.branch_probability:g}")
        if self.enable_dynamic_rollouts and self.initial_rollouts is not None:
            raise ValueError(
                f"initial_rollouts is {self.initial_rollouts}, but with enable_dynamic_rollouts=true the probe says "
                "how many rows start; leave one of them out"
            )


@dataclass(kw_only=True, slots=True)
class AepoSoftmaxConfig:
    """Advantages weighed by a softmax of entropies."""

    temperature: float = 1.0  # T, of the softmax, in nats; the larger, the more alike the weights
    normalize_std: bool = True  # divide by the standard deviation of the group
    eps: float = 1e-6  # added to it

    def __post_init__(self) -> None:
        for name in ("temperature", "eps"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name):g}")
