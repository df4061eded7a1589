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
    """The released ARPO: names and defaults are its scripts'. The budget is `rollout.group_size`."""

    initial_rollouts: int | None = option(
        None, "rows that start from the prompt; null: half of rollout.group_size, at least one", minimum=1
    )
    beam_size: int = option(2, "a row is copied at most beam_size - 1 times in a round", minimum=1)
    branch_probability: float = option(0.5, "largest draw with which a row is copied; see rule", minimum=0, maximum=1)
    entropy_weight: float = option(0.2, "weight of the change of entropy")
    rule: ReleaseRule = option(
        ReleaseRule.SHIFTED_DRAW, "rule of a copy; shifted_draw: the code's; threshold_and_draw: the documents'"
    )


@dataclass(kw_only=True, slots=True)
class AepoReleaseConfig:
    """The released AEPO: names and defaults are its scripts'. The budget is `rollout.group_size`."""

    enable_dynamic_rollouts: bool = option(False, "a probe and a discarded rollout set the number of rows that start")
    initial_entropy_tokens: int = option(50, "length of the probe, in tokens", minimum=1)
    initial_rollouts: int | None = option(
        None, "rows that start without the probe; null: half of rollout.group_size, at least one", minimum=1
    )
    beam_size: int = option(2, "a row is copied at most beam_size - 1 times in a round", minimum=1)
    branch_probability: float = option(
        0.5, "as the scripts have it: a copy is made with a probability of about one minus this", minimum=0, maximum=1
    )
    entropy_weight: float = option(0.2, "weight of the change of entropy")

    def __post_init__(self) -> None:
        if self.enable_dynamic_rollouts and self.initial_rollouts is not None:
            raise ValueError(
                f"initial_rollouts is {self.initial_rollouts}, but with enable_dynamic_rollouts=true the probe says "
                "how many rows start; leave one of them out"
            )


@dataclass(kw_only=True, slots=True)
class AepoSoftmaxConfig:
    """Advantages weighed by a softmax of entropies."""

    temperature: float = option(
        1.0, "temperature of the softmax, in nats; the larger, the more alike the weights", above=0
    )
    normalize_std: bool = option(True, "divide by the standard deviation of the group")
    eps: float = option(1e-6, "added to the standard deviation, against division by 0", above=0)
