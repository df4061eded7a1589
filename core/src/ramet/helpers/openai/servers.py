"""Which of several servers gets a request: the least busy one, or the one that has the prompt's prefix in its cache."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

MAX_REST_S = 30.0


@dataclass(slots=True, eq=False)
class Server:
    """`url` is the base. A server that failed rests: twice as long each time, until it answers again."""

    url: str
    in_flight: int = 0
    failures: int = 0  # in a row
    resting_until: float = 0.0  # of the monotonic clock

    def answered(self) -> None:
        self.failures, self.resting_until = 0, 0.0

    def failed(self) -> None:
        self.resting_until = time.monotonic() + min(0.5 * 2**self.failures, MAX_REST_S)
        self.failures = min(self.failures + 1, 16)


class Servers:
    def __init__(self, urls: Sequence[str]) -> None:
        self.all = [Server(url) for url in urls]

    def choose(self, affinity: str = "", tried: Collection[Server] = ()) -> Server:
        """A server that neither rests nor was tried; if there is none, the one that will have rested first.

        Requests of one `affinity` go to one server while it works (rendezvous hashing, so that others keep theirs when
        a server is lost); without it, to the least busy one.
        """
        now = time.monotonic()
        ready = [one for one in self.all if one.resting_until <= now and one not in tried]
        if not ready:
            return min((one for one in self.all if one not in tried), key=_rest, default=min(self.all, key=_rest))
        if affinity and len(ready) > 1:
            return max(ready, key=lambda one: hashlib.sha256(f"{affinity}\n{one.url}".encode()).digest())
        return min(ready, key=lambda one: one.in_flight)


def _rest(server: Server) -> float:
    return server.resting_until
