"""Options of the advantages."""

from __future__ import annotations

from dataclasses import dataclass

from ramet import option


@dataclass(kw_only=True, slots=True)
class DistillConfig:
    """On-policy distillation by reverse KL; the teacher is `train.teacher`."""

    max_gap: float | None = option(
        10.0, "largest difference of the log-probabilities, in nats, that a token's advantage has; null: no bound",
        above=0,
    )  # fmt: skip
    reward_weight: float = option(
        0.0, "weight of the advantage that advantage=grpo has, in addition to the teacher's; 0: only the teacher",
        minimum=0,
    )  # fmt: skip


@dataclass(kw_only=True, slots=True)
class SdpoConfig:
    """Self-distillation with feedback (arXiv 2601.20802)."""

    solved_from: float = option(1.0, "reward from which a rollout of the group is shown to the others as a solution")
    tool_errors: bool = option(True, "show a rollout the texts of its tool calls that ended with an error")
    max_chars: int = option(4000, "characters of a solution, and of the errors, that are shown", minimum=1)
    max_gap: float | None = option(
        10.0, "largest difference of the log-probabilities, in nats, that a token's advantage has; null: no bound",
        above=0,
    )  # fmt: skip


@dataclass(kw_only=True, slots=True)
class IgpoConfig:
    """Information gain of turns (arXiv 2510.14967)."""

    gamma: float = option(1.0, "discount from turn to turn", minimum=0, maximum=1)
    before: str = option(
        "<answer>", "text between a turn's beginning and the gold answer whose probability is measured"
    )
    eps: float = option(1e-6, "added to the standard deviation, against division by 0", above=0)
