"""Episodes: sessions of programs that run elsewhere. A rollout waits for its lease, and then for its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ramet.errors import InfraError
from ramet.io import repeats
from ramet.rollout.gateway.messages import BadRequest
from ramet.rollout.gateway.session import AgentSession
from ramet.types import AgentResult

logger = logging.getLogger(__name__)
REMEMBERED = 10_000  # episodes that are over, so that later requests learn why


def _new_result() -> asyncio.Future[AgentResult]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False, kw_only=True)
class AgentEpisode:
    """One session. Made in the event loop of the gateway."""

    id: str
    key: str  # of the session
    session: AgentSession
    offer: Mapping[str, Any] = field(default_factory=dict)  # what its lease says in addition to address and key
    is_leased: bool = False
    result: asyncio.Future[AgentResult] = field(default_factory=_new_result)  # `InfraError`: an outage was reported


class Episodes:
    """The episodes of one gateway. Methods are called in its event loop."""

    def __init__(self, lease_s: float) -> None:
        """`lease_s`: how long a leased rollout may be without a sign of life of its client."""
        self.lease_s = lease_s
        self._episodes: dict[str, AgentEpisode] = {}
        self._over: dict[str, str | None] = {}  # by episode: why it was freed; None: it was ended
        self._waiting: deque[AgentEpisode] = deque()
        self._changed = asyncio.Condition()
        self._closed = False

    def add(self, episode: AgentEpisode) -> None:
        """Serve it from now on."""
        self._episodes[episode.id] = episode

    def get(self, id: str) -> AgentEpisode:
        """Return a running episode. Raises `BadRequest` for one that is unknown (404), has ended (409) or was freed
        (410).
        """
        episode = self._episodes.get(id)
        if episode is not None and not episode.result.done():
            return episode
        if episode is None and id not in self._over:
            raise BadRequest(f"there is no episode {id!r:.80}", status=404, code="unknown_episode")
        if (why := self._over.get(id)) is None:
            raise BadRequest("this episode has ended", status=409, code="episode_ended")
        raise BadRequest(f"this episode is over: {why}", status=410, code="episode_gone")

    async def run(self, episode: AgentEpisode) -> AgentResult:
        """Offer a rollout for lease, and return its end. Raises `InfraError` for an outage that is reported, and for
        a lease without a sign of life.
        """
        self.add(episode)
        self._waiting.append(episode)
        why = "the rollout was cancelled: its deadline passed, or the run does not need it"
        try:
            await self._notify()
            while not episode.result.done():
                await asyncio.wait([episode.result], timeout=self._lease_left(episode))
            return episode.result.result()
        except InfraError as error:
            why = str(error)
            raise
        finally:
            del self._episodes[episode.id]
            if episode in self._waiting:
                self._waiting.remove(episode)
            self._over[episode.id] = None if episode.result.done() else episode.session.mismatch or why
            if len(self._over) > REMEMBERED:
                del self._over[next(iter(self._over))]

    async def lease(self, wait_s: float, is_connected: Callable[[], bool]) -> AgentEpisode | None:
        """Take the rollout that waits longest, if one comes within `wait_s`. Where the client has gone meanwhile, the
        rollout stays for another one.

        Raises `BadRequest` once the gateway closes.
        """
        try:
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    raise BadRequest("the run has ended: no rollouts come any more", status=410, code="run_ended")
                if not is_connected():
                    return None
                episode = self._waiting.popleft()
        except TimeoutError:
            return None
        episode.is_leased, episode.session.heard_at = True, time.monotonic()
        return episode

    async def close(self) -> None:
        """Answer all that wait for a lease."""
        self._closed = True
        await self._notify()

    def _lease_left(self, episode: AgentEpisode) -> float:
        """Seconds until the next look. Raises `InfraError` if its client shows no sign of life."""
        if not episode.is_leased:
            waited = episode.session.silent_s
            if waited >= self.lease_s:
                message = "rollout %s has waited %.0f s for an agent that leases it"
                repeats.warn(logger, "rollouts wait for an agent", message, episode.session.name, waited)
            return self.lease_s
        if (left := self.lease_s - episode.session.silent_s) <= 0:
            what = f"its client gave no sign of life for lease_s={self.lease_s:g}: the machine that ran it is gone"
            raise InfraError(what)
        return left

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
