"""Counters that the compute thread adds to and the asyncio side reads and resets."""

from __future__ import annotations

import statistics
import threading
import time
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
    "preemptions",
)
BUSY = "engine/busy_share"
CACHE = "engine/cache_peak_share"  # of engines that report it


class Counters:
    """Thread-safe sums since the last `take`, and the share of the time in which there was a request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: Counter[str] = Counter()
        self._cache_peak: float | None = None
        self._requests = 0
        self._busy_s = 0.0  # up to the last moment without requests
        self._busy_since = self._taken = time.monotonic()

    def add(self, **amounts: int) -> None:
        with self._lock:
            self._sums.update(amounts)

    def note_cache(self, share: float) -> None:
        """Note how much of the cache of keys and values was in use at once."""
        with self._lock:
            self._cache_peak = max(share, self._cache_peak or 0.0)

    def request_began(self) -> None:
        with self._lock:
            if not self._requests:
                self._busy_since = time.monotonic()
            self._requests += 1

    def request_ended(self) -> None:
        with self._lock:
            self._requests -= 1
            if not self._requests:
                self._busy_s += time.monotonic() - self._busy_since

    def take(self) -> dict[str, float]:
        """All counters as metrics, set to zero again."""
        with self._lock:
            sums, self._sums = self._sums, Counter()
            now = time.monotonic()
            busy_s = self._busy_s + (now - self._busy_since if self._requests else 0.0)
            share = busy_s / max(now - self._taken, 1e-9)
            self._busy_s, self._busy_since, self._taken = 0.0, now, now
            cache = {} if self._cache_peak is None else {CACHE: self._cache_peak}
            self._cache_peak = None
        return merged([{**{f"engine/{name}": float(sums[name]) for name in NAMES}, BUSY: share, **cache}])


def merged(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of several engines together: counts add up, the hit rate is over all prompt tokens, the busy share is
    the mean over engines, and the peak of the caches the highest.
    """
    sums: dict[str, float] = {}
    for part in parts:
        for name, count in part.items():
            sums[name] = sums.get(name, 0.0) + count
    if busy := [part[BUSY] for part in parts if BUSY in part]:
        sums[BUSY] = statistics.fmean(busy)
    if peaks := [part[CACHE] for part in parts if CACHE in part]:
        sums[CACHE] = max(peaks)
    prompt, cached = sums.get("engine/prompt_tokens", 0.0), sums.get("engine/cached_tokens", 0.0)
    return sums | {"engine/prefix_cache_hit_rate": cached / prompt if prompt else 0.0}
