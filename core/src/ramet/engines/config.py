"""Options of the built-in engines. Imports nothing heavy: `ramet --help` loads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class TorchEngineConfig:
    """The engine `torch`: continuous batching over a static KV cache.

    slots: sequences whose cache is held at once. max_tokens: prompt and response of one sequence; null: what data and
    rollout allow. prefill_tokens: prompt tokens computed between two decode steps at most.
    """

    slots: int = 64
    max_tokens: int | None = None
    prefill_tokens: int = 2048

    def __post_init__(self) -> None:
        if self.slots < 4:
            raise ValueError(f"slots must be at least 4, got {self.slots}")
