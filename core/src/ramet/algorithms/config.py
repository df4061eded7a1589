"""Options of the built-in estimators and losses. Imports nothing heavy: `ramet --help` loads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class GrpoConfig:
    """GRPO (arXiv 2402.03300). normalize_std False gives the Dr. GRPO advantage; eps is added to the std."""

    normalize_std: bool = True
    eps: float = 1e-6


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
