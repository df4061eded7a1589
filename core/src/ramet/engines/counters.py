"""Counters that the compute thread adds to and the asyncio side reads and resets."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence

# recomputed_tokens: of running requests, whose caches an update in flight dropped.
NAMES = (
    "prompt_tokens",
    "cached_tokens",
    "recomputed_prefix_tokens",
    "sampled_tokens",
    "forks",
    "decode_steps",
    "failed_requests",
    "updates_in_flight",
    "recomputed_tokens",
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
        return merged([{f"engine/{name}": float(sums[name]) for name in NAMES}])


def merged(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of several engines together: counts add up, and the hit rate is that of all prompt tokens."""
    sums: dict[str, float] = {}
    for part in parts:
        for name, count in part.items():
            sums[name] = sums.get(name, 0.0) + count
    prompt, cached = sums.get("engine/prompt_tokens", 0.0), sums.get("engine/cached_tokens", 0.0)
    return sums | {"engine/prefix_cache_hit_rate": cached / prompt if prompt else 0.0}
