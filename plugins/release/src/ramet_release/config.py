"""Options of what was released."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ramet import option


class ReleaseRule(StrEnum):
    """Rule by which an attempt makes a copy, of its draw U and the entropies H (segment) and H_base (table)."""

    SHIFTED_DRAW = "shifted_draw"  # clip(U - entropy_weight * (H - H_base), 0, 1) <= branch_probability: as released
    THRESHOLD_AND_DRAW = "threshold_and_draw"  # H > entropy_weight * H_base and U < branch_probability


@dataclass(kw_only=True, slots=True)
class ArpoReleaseConfig:
    """The released ARPO: names and defaults are those of its scripts. The budget is `rollout.group_size`."""

    initial_rollouts: int | None = option(
        None, "rows that start from the prompt; null: half the budget, at least one", minimum=1
    )
    beam_size: int = option(2, "a row is copied at most one time less in a round; 1: never", minimum=1)
    branch_probability: float = option(0.5, minimum=0, maximum=1)
    entropy_weight: float = option(0.2, "of the change of entropy")
    rule: ReleaseRule = option(ReleaseRule.SHIFTED_DRAW, "threshold_and_draw: what the project's documents say instead")


@dataclass(kw_only=True, slots=True)
class AepoReleaseConfig:
    """The released AEPO: names and defaults are those of its scripts. The budget is `rollout.group_size`."""

    enable_dynamic_rollouts: bool = option(False, "how many rows start is decided by a probe and a rollout thrown away")
    initial_entropy_tokens: int = option(50, "length of the probe", minimum=1)
    initial_rollouts: int | None = option(
        None, "rows that start without the probe; null: half the budget, at least one", minimum=1
    )
    beam_size: int = option(2, "a row is copied at most one time less in a round; 1: never", minimum=1)
    branch_probability: float = option(
        0.5, "the draw is the other way round: a copy is made with about one minus this", minimum=0, maximum=1
    )
    entropy_weight: float = option(0.2, "of the change of entropy")

    def __post_init__(self) -> None:
        if self.enable_dynamic_rollouts and self.initial_rollouts is not None:
            raise ValueError(
                f"initial_rollouts is {self.initial_rollouts}, but with enable_dynamic_rollouts=true the probe says "
                "how many rows start; leave one of them out"
            )


@dataclass(kw_only=True, slots=True)
class AepoSoftmaxConfig:
    """Advantages weighed by a softmax of entropies."""

    temperature: float = option(1.0, "T, of the softmax, in nats; the larger, the more alike the weights", above=0)
    normalize_std: bool = option(True, "divide by the standard deviation of the group")
    eps: float = option(1e-6, "added to it", above=0)
