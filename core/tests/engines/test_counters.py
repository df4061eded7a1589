"""Counts since the last look, and the share of the time in which an engine had a request."""

from __future__ import annotations

import pytest

from ramet.engines import counters
from ramet.engines.counters import BUSY, CACHE, Counters, merged


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(counters.time, "monotonic", lambda: now[0])
    return now


def test_an_engine_is_busy_while_it_has_a_request(clock: list[float]) -> None:
    found = Counters()
    clock[0] = 1.0
    found.request_began()
    clock[0] = 2.0
    found.request_began()
    found.request_ended()
    clock[0] = 3.0
    found.request_ended()
    clock[0] = 4.0
    assert found.take()[BUSY] == 0.5
    found.request_began()
    clock[0] = 6.0
    assert found.take()[BUSY] == 1.0  # the request goes on
    clock[0] = 7.0
    found.request_ended()
    clock[0] = 8.0
    assert found.take()[BUSY] == 0.5
    assert found.take()[BUSY] == 0.0


def test_of_several_engines_counts_add_up_and_the_share_is_the_mean() -> None:
    one, other = {"engine/prompt_tokens": 4.0, "engine/cached_tokens": 1.0, BUSY: 0.5}, {"engine/forks": 2.0, BUSY: 1.0}
    assert merged([one, other]) == {
        "engine/prompt_tokens": 4.0, "engine/cached_tokens": 1.0, "engine/forks": 2.0, BUSY: 0.75,
        "engine/prefix_cache_hit_rate": 0.25,
    }  # fmt: skip
    assert BUSY not in merged([])


def test_the_peak_of_the_caches_is_the_highest_since_the_last_look() -> None:
    found = Counters()
    assert CACHE not in found.take()
    found.note_cache(0.75)
    found.note_cache(0.25)
    assert merged([found.take(), {CACHE: 0.5}])[CACHE] == 0.75
    assert CACHE not in found.take()
