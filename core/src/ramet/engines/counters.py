"""Counters that the compute thread adds to and the asyncio side reads and resets."""

from __future__ import annotations

import threading
from collections import Counter

NAMES = (
    "prompt_tokens",
    "cached_tokens",
    "recomputed_prefix_tokens",
    "sampled_tokens",
    "forks",
    "decode_steps",
    "failed_requests",
)


class Counters:
    """Thread-safe sums since the last `take`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: Counter[str] = Counter()

    def add(self, **amounts: int) -> None:
        with self._lock:
            self._sums.update(amounts)

    def take(self) -> dict[str, float]:
        """All counters as metrics, set to zero again."""
        with self._lock:
            sums, self._sums = self._sums, Counter()
        metrics = {f"engine/{name}": float(sums[name]) for name in NAMES}
        prompt = sums["prompt_tokens"]
        metrics["engine/prefix_cache_hit_rate"] = sums["cached_tokens"] / prompt if prompt else 0.0
        return metrics
