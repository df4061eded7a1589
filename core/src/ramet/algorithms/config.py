"""Options of the built-in estimators and losses. Imports nothing heavy: `ramet --help` loads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class GrpoConfig:
    """GRPO (arXiv 2402.03300). normalize_std False gives the Dr. GRPO advantage; eps is added to the std."""

    normalize_std: bool = True
    eps: float = 1e-6


@dataclass(kw_only=True, slots=True)
class GaeConfig:
    """Generalized advantage estimation (arXiv 1506.02438) with a critic. The defaults are those of the release."""

    gamma: float = 1.0  # discount of a reward for every sampled token before it
    lam: float = 1.0  # 1: the advantage uses the return alone; 0: the critic's value of the next token
    whiten: bool = True  # advantages get mean 0 and standard deviation 1 over all sampled tokens of the step
    critic_lr: float = 1e-5
    critic_warmup_steps: int = 0  # first training steps in which only the critic is updated
    value_clip: float = 0.5  # a value moves at most so far from the one before the update, in the critic's loss

    def __post_init__(self) -> None:
        for name in ("gamma", "lam"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        if self.critic_lr < 0 or self.critic_warmup_steps < 0:
            raise ValueError(
                f"critic_lr and critic_warmup_steps must not be negative, got {self.critic_lr} and "
                f"{self.critic_warmup_steps}"
            )
        if self.value_clip <= 0:
            raise ValueError(f"value_clip must be over 0, got {self.value_clip}")


@dataclass(kw_only=True, slots=True)
class PpoClipConfig:
    """The clipped surrogate: ratio in [1 - clip_low, 1 + clip_high]; dual_clip bounds the loss where A < 0."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = 3.0

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low < 1:
            raise ValueError(f"clip_low must be in [0, 1), got {self.clip_low}")
        if self.clip_high < 0:
            raise ValueError(f"clip_high must not be negative, got {self.clip_high}")
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError(f"dual_clip must be over 1 or null, got {self.dual_clip}")
