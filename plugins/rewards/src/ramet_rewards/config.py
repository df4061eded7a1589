"""Options of the rewards."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(kw_only=True, slots=True)
class MathConfig:
    timeout_s: float = 5.0  # CPU time for one answer; an answer that takes more scores 0
    workers: int = 2  # processes that compare; they start with the first answer that is not plainly equal
    allow_terms: bool = False  # where the gold answer is a number, also a term of its value is right (17*23 for 391)


@dataclass(kw_only=True, slots=True)
class FormatConfig:
    """Tag names are without brackets."""

    paired: list[str] = field(default_factory=lambda: ["think", "python", "search", "answer"])  # closed, not crossing
    required: list[str] = field(default_factory=lambda: ["answer"])  # at least one pair of each
    forbidden: list[str] = field(default_factory=lambda: ["result"])  # only the environment writes these
    good: float = 1.0
    bad: float = 0.0
    leave_out_truncated: bool = False  # rollouts cut by the token limit leave statistics and loss (DAPO, section 3.4)


@dataclass(kw_only=True, slots=True)
class OverlongConfig:
    max_tokens: int = 4096  # from here on the score is -1; rollout.max_response_tokens, as a rule
    buffer_tokens: int = 1024  # before it, in which the score falls from 0 to -1
    sampled_only: bool = False  # count what the policy wrote; false: tool results too, as the limit of rollouts does

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 1 <= self.buffer_tokens <= self.max_tokens:
            raise ValueError(
                f"buffer_tokens must be at least 1 and at most max_tokens={self.max_tokens}, got {self.buffer_tokens}"
            )
