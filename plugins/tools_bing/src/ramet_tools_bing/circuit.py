"""Whether a provider may be asked now: closed, or open because it is down, throttles or refuses.

While it is open no call asks. Then one call goes through as a probe, and the others wait for its result. Callers that
must wait get an `InfraError` with `retry_after_s`, which makes a call wait outside its slot.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from ramet import ConfigError, InfraError
from ramet_tools_bing.providers.base import FaultKind, ProviderError

logger = logging.getLogger(__name__)
WINDOW_S = 60.0
MOST_FAILURES = 0.2  # of the requests in the window, if there are at least
LEAST_REQUESTS = 10
MOST_IN_A_ROW = 5
PROBE_POLL_S = 1.0  # how soon those come back that wait for the probe
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 32.0  # after a 429 that does not say how long; doubles with each in a row


class Circuit:
    """The state of one provider in one process. `waits`: whether calls wait while the provider is down."""

    def __init__(self, who: str, *, down_s: float, waits: bool) -> None:
        self.who = who
        self.down_s = down_s
        self.waits = waits
        self.open_until = 0.0
        self.reason = ""
        self._outcomes: deque[tuple[float, bool]] = deque()  # when, whether it failed
        self._failures = 0  # among them
        self._in_a_row = 0
        self._throttled_in_a_row = 0
        self._kind: FaultKind | None = None  # why it is open, or was until the probe succeeds
        self._probing = False
        self._opened_at = 0.0
        self._news = False
        self._ever_succeeded = False

    def take_news(self) -> bool:
        """Whether it has opened since this was asked: to be announced to all workers, once."""
        news, self._news = self._news, False
        return news

    @contextmanager
    def request(self) -> Iterator[None]:
        """Refuse a request while the circuit is open; otherwise run the block and learn from how it ends.

        Raises `InfraError` instead of entering, and `ConfigError` if the provider has refused the very first requests:
        then key, account or address are wrong, and no rollout can succeed.
        """
        self._refuse_while_open()
        probes = self._probing = self._kind is not None
        begun = time.monotonic()
        try:
            yield
        except ProviderError as error:
            self._failed(error, begun)
            raise
        else:
            self._succeeded(begun)
        finally:
            if probes:
                self._probing = False

    def _refuse_while_open(self) -> None:
        seconds_left = self.open_until - time.monotonic()
        if self._kind is None or (seconds_left <= 0 and not self._probing):
            return
        waits = self._kind is FaultKind.THROTTLED or (self.waits and self._kind is not FaultKind.REFUSED)
        raise InfraError(self.reason, retry_after_s=max(seconds_left, PROBE_POLL_S) if waits else None)

    def _succeeded(self, begun: float) -> None:
        self._ever_succeeded = True
        self._count(failed=False)
        if self._is_old(begun):
            return
        if self._kind is not None:
            logger.warning("search: %s answers again", self.who)
            self._outcomes.clear()
            self._failures = 0
        self._kind = None
        self._in_a_row = self._throttled_in_a_row = 0

    def _is_old(self, begun: float) -> bool:
        """A request that was running already when the circuit opened says nothing new."""
        return self._kind is not None and begun < self._opened_at

    def _failed(self, error: ProviderError, begun: float) -> None:
        if error.fault is FaultKind.REFUSED and not self._ever_succeeded:
            raise ConfigError(f"{error}; look at its key, account, zone and address") from error
        if error.fault not in (FaultKind.REFUSED, FaultKind.THROTTLED):
            self._count(failed=True)
        if self._is_old(begun):
            return
        if error.fault is FaultKind.REFUSED:
            self._open(error.fault, self.down_s, str(error))
        elif error.fault is FaultKind.THROTTLED:
            self._throttled(error)
        else:
            self._in_a_row += 1
            self._open_if_down(error)

    def _throttled(self, error: ProviderError) -> None:
        pause_s = error.retry_after_s
        if pause_s is None:
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self._throttled_in_a_row)
        self._throttled_in_a_row += 1
        self._open(error.fault, pause_s, str(error))

    def _open_if_down(self, error: ProviderError) -> None:
        failed, all_of_them = self._failures, len(self._outcomes)
        too_many = all_of_them >= LEAST_REQUESTS and failed > MOST_FAILURES * all_of_them
        if self._probing or too_many or self._in_a_row >= MOST_IN_A_ROW:
            said = f"{failed} of {all_of_them} requests failed within {WINDOW_S:g} s, the last one so: {error}"
            self._open(error.fault, self.down_s, said)

    def _open(self, kind: FaultKind, seconds: float, reason: str) -> None:
        same_kind = self._kind is kind
        self._kind, self.reason, self._news = kind, reason, True
        self._opened_at = time.monotonic()
        self.open_until = self._opened_at + seconds
        if not same_kind:
            logger.warning("search: %s is not asked for %.3g s: %s", self.who, seconds, reason)

    def _count(self, *, failed: bool) -> None:
        now = time.monotonic()
        self._outcomes.append((now, failed))
        self._failures += failed
        while self._outcomes[0][0] < now - WINDOW_S:
            self._failures -= self._outcomes.popleft()[1]
