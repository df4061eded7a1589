"""Searches as a run needs them: stored answers first, one request for equal queries, limits that all workers share.

Failures are treated by kind (`FaultKind`). A broken answer is asked for again at most twice. A service that is down is
tried again after 1, 2, 4 … seconds with full jitter. A 429 stops all workers until the service wants to be asked again.
A refused query is not tried again. Any failure that is left is an `InfraError`, never an empty text, and is not stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter

from ramet import InfraError, Limiter
from ramet.helpers import SingleFlight
from ramet_tools_bing.cache import AnswerCache
from ramet_tools_bing.cache_entries import recorded_options
from ramet_tools_bing.circuit import Circuit
from ramet_tools_bing.config import SearchConfig
from ramet_tools_bing.providers.base import FaultKind, Provider, ProviderError
from ramet_tools_bing.results import SearchItem, SearchResult

logger = logging.getLogger("ramet.tools.search")
QUEUE_S = 10.0  # a turn that comes later is waited for outside the tool's slot
PLACE_POLL_S = 1.0
BROKEN_TRIES = 3  # of a call whose answers cannot be read
BACKOFF_S = 1.0
LEAST_S = 0.5  # a request with less time than that is not begun
TRIED_AGAIN = (FaultKind.DOWN, FaultKind.BROKEN)


class NotStoredError(Exception):
    """Error for a query whose answer is not stored, where only stored ones may be given."""


class _OutOfTime(InfraError):
    """The deadline of the call that asked, `ends_at`, came before an answer: with more time there might be one."""

    def __init__(self, message: str, *, ends_at: float, retry_after_s: float | None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.ends_at = ends_at


class SearchClient:
    """Searches of one event loop. `limiter` is the run's, or one of this process."""

    def __init__(self, config: SearchConfig, provider: Provider, cache: AnswerCache, limiter: Limiter) -> None:
        self.config = config
        self.provider = provider
        self.cache = cache
        self.limiter = limiter
        self.circuit = Circuit(provider.name, down_s=config.down_s, waits=config.when_down == "wait")
        self.counts: Counter[str] = Counter()  # calls, cached, requests, and each kind of fault
        self._searches = SingleFlight[SearchResult]()
        self._said_options = False

    async def search(self, query: str, k: int, *, deadline_s: float) -> SearchResult:
        """Return the answer to a normalised query. Raises `NotStoredError`, `InfraError`, `ConfigError`."""
        self.counts["calls"] += 1
        keys = self.provider.cache_keys(query, k)
        if self.provider.cached:
            stored = self.cache.search_result(keys, query)
            if stored is not None:
                self.counts["cached"] += 1
                return stored
            if self.cache.replays:
                await self._say_other_options(k)
                raise NotStoredError(query)
        ends_at = time.monotonic() + deadline_s
        while True:
            try:
                return await self._shared(keys[0], query, k, ends_at)
            except _OutOfTime as error:
                if error.ends_at + LEAST_S > ends_at:  # otherwise an equal call had less time: search again
                    raise

    async def _shared(self, key: str, query: str, k: int, ends_at: float) -> SearchResult:
        """Ask, or wait for an equal call that asks, each until its own deadline."""
        own_s = ends_at - time.monotonic() if key in self._searches else None
        try:
            async with asyncio.timeout(own_s):
                return await self._searches.run(key, lambda: self._ask(key, query, k, ends_at))
        except TimeoutError as error:
            raise InfraError("an equal search that was begun before has not been answered in time") from error

    async def _ask(self, key: str, query: str, k: int, ends_at: float) -> SearchResult:
        items = await self._tried(query, k, ends_at)
        result = SearchResult(items=items, provider=self.provider.name, fetched_at=time.time())
        if self.provider.cached:
            await self.cache.put(key, {"query": query, "options": self.provider.options(k)[0][1], **result.stored()})
        return result

    async def _say_other_options(self, k: int) -> None:
        """Log once what the answers were recorded with, if nothing in the cache was recorded as is asked now."""
        if self._said_options:
            return
        self._said_options = True
        recorded = await asyncio.to_thread(recorded_options, self.cache.folder)
        if recorded and not recorded & {*self.provider.options(k)}:
            described = "; ".join(f"provider={name} {options}".rstrip() for name, options in sorted(recorded))
            logger.warning(
                "search: no answer in %s was recorded with these options, and only stored answers are given. It has "
                "answers of %s: set tools.search.params to that",
                self.cache.folder, described,
            )  # fmt: skip

    async def _tried(self, query: str, k: int, ends_at: float) -> tuple[SearchItem, ...]:
        """Try again and again, as long as that may help and there is time."""
        for attempt in range(self.config.tries):
            try:
                return await self._request(query, k, ends_at)
            except ProviderError as error:
                self.counts[str(error.fault)] += 1
                pause_s = max(random.uniform(0, BACKOFF_S * 2**attempt), error.retry_after_s or 0)
                tries = min(self.config.tries, BROKEN_TRIES) if error.fault is FaultKind.BROKEN else self.config.tries
                helps = error.fault in TRIED_AGAIN
                late = helps and time.monotonic() + pause_s + LEAST_S >= ends_at
                if late or not helps or attempt + 1 >= tries:
                    raise await self._final(error, ends_at if late else None) from error
                await asyncio.sleep(pause_s)
        raise InfraError(f"{self.provider.name}: no request was made")  # tries is at least 1

    async def _request(self, query: str, k: int, ends_at: float) -> tuple[SearchItem, ...]:
        """Send one request, in its turn. A corpus needs none: it is not a service that could be asked too often."""
        async with contextlib.AsyncExitStack() as held:
            if self.provider.cached:
                await self._take_place(held, ends_at)
                await self.limiter.wait(at_most_s=max(0.0, min(QUEUE_S, ends_at - time.monotonic() - LEAST_S)))
            with self.circuit.request():
                self.counts["requests"] += 1
                timeout_s = min(self.config.request_timeout_s, max(LEAST_S, ends_at - time.monotonic()))
                return await self.provider.search(query, k, timeout_s=timeout_s)

    async def _take_place(self, held: contextlib.AsyncExitStack, ends_at: float) -> None:
        """Keep a place until `held` is left.

        A worker that is killed gives its place back when its requests must have ended.
        """
        try:
            async with asyncio.timeout(max(0.0, min(QUEUE_S, ends_at - time.monotonic()))):
                place = self.limiter.place(2 * self.config.request_timeout_s + QUEUE_S)
                await held.enter_async_context(place)
        except TimeoutError as error:
            reason = f"{self.provider.name}: as many requests as may run at the same time are running"
            raise InfraError(reason, retry_after_s=PLACE_POLL_S) from error

    async def _final(self, error: ProviderError, out_of_time: float | None) -> InfraError:
        """The error of a call; `out_of_time`: its deadline, if that is why. All workers get an open circuit."""
        seconds_left = self.circuit.open_until - time.monotonic()
        if seconds_left <= 0:
            asked = error.retry_after_s or None
            if out_of_time is not None:
                return _OutOfTime(str(error), ends_at=out_of_time, retry_after_s=asked)
            return InfraError(str(error), retry_after_s=asked)
        throttled = error.fault is FaultKind.THROTTLED
        waits = throttled or (self.config.when_down == "wait" and error.fault is not FaultKind.REFUSED)
        if waits and self.circuit.take_news():
            await self.limiter.pause(seconds_left, reason=self.circuit.reason, slower=throttled)
        return InfraError(self.circuit.reason, retry_after_s=seconds_left if waits else None)

    async def aclose(self) -> None:
        await self._searches.aclose()
        await self.provider.aclose()
