"""Log-probabilities, entropies and versions of sampled tokens, fetched from vLLM's first worker.

Requests ask twice, at their first report and at their end. What is asked for while a call is under way goes into the
next one, so that the workers are asked at most once a step, however many requests there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ramet.errors import InfraError

Taken: TypeAlias = tuple[list[float], list[float], list[int]]  # one entry per sampled token, in order
Call: TypeAlias = Callable[[list[tuple[str, int]], list[str]], Awaitable[list[Taken]]]


class Numbers:
    """Used on one loop. `call` asks for the first tokens of requests and names those that are over."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._wanted: list[tuple[str, int, asyncio.Future[Taken]]] = []
        self._over: list[str] = []
        self._task: asyncio.Task[None] | None = None

    async def take(self, name: str, count: int) -> Taken:
        """The numbers of this request's first `count` tokens, which are known to be sampled."""
        if not count:
            return [], [], []
        future: asyncio.Future[Taken] = asyncio.get_running_loop().create_future()
        self._wanted.append((name, count, future))
        if self._task is None:
            self._task = asyncio.create_task(self._fetch())
        logprobs, entropies, versions = taken = await future
        if not len(logprobs) == len(entropies) == len(versions) == count:
            raise InfraError(f"vLLM sampled {count} tokens and measured {len(logprobs)}")
        return taken

    def forget(self, name: str) -> None:
        """The request is over."""
        self._over.append(name)

    async def _fetch(self) -> None:
        try:
            while self._wanted:
                wanted, self._wanted = self._wanted, []
                over, self._over = self._over, []
                await self._ask(wanted, over)
        finally:
            self._task = None

    async def _ask(self, wanted: list[tuple[str, int, asyncio.Future[Taken]]], over: list[str]) -> None:
        try:
            found = await self._call([(name, count) for name, count, _ in wanted], over)
        except Exception as error:  # whatever broke, those who wait must hear of it
            for _, _, future in wanted:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, _, future), taken in zip(wanted, found, strict=True):
                if not future.done():
                    future.set_result(taken)
