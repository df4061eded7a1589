"""Log-probabilities, entropies and versions of sampled tokens, fetched from vLLM's first worker.

Requests ask twice, at their first report and at their end. Requests during a call go into the next one, so that the
workers are asked at most once a step, however many requests there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ramet.errors import InfraError

SampledNumbers: TypeAlias = tuple[list[float], list[float], list[int]]  # one entry per sampled token, in order
Fetch: TypeAlias = Callable[[list[tuple[str, int]], list[str]], Awaitable[list[SampledNumbers]]]


class LogprobFetcher:
    """Used on one loop. `fetch` asks for the first tokens of requests and names those that have ended."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._wanted: list[tuple[str, int, asyncio.Future[SampledNumbers]]] = []
        self._ended: list[str] = []
        self._task: asyncio.Task[None] | None = None

    async def get(self, name: str, count: int) -> SampledNumbers:
        """The numbers of this request's first `count` tokens, which are known to be sampled."""
        if not count:
            return [], [], []
        future: asyncio.Future[SampledNumbers] = asyncio.get_running_loop().create_future()
        self._wanted.append((name, count, future))
        if self._task is None:
            self._task = asyncio.create_task(self._fetch_all())
        logprobs, entropies, versions = numbers = await future
        if not len(logprobs) == len(entropies) == len(versions) == count:
            raise InfraError(f"vLLM sampled {count} tokens and measured {len(logprobs)}")
        return numbers

    def forget(self, name: str) -> None:
        """The request has ended."""
        self._ended.append(name)

    async def _fetch_all(self) -> None:
        try:
            while self._wanted:
                wanted, self._wanted = self._wanted, []
                ended, self._ended = self._ended, []
                await self._fetch_some(wanted, ended)
        finally:
            self._task = None

    async def _fetch_some(
        self, wanted: list[tuple[str, int, asyncio.Future[SampledNumbers]]], ended: list[str]
    ) -> None:
        try:
            fetched = await self._fetch([(name, count) for name, count, _ in wanted], ended)
        except Exception as error:  # whatever broke, those who wait must get it
            for _, _, future in wanted:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, _, future), numbers in zip(wanted, fetched, strict=True):
                if not future.done():
                    future.set_result(numbers)
