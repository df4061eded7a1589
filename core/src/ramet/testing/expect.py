"""Common part of all checks: `AssertionError` with a sentence (also under `python -O`), and forks of states."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Self

from ramet.rollout.watchdog import EventLoopMonitor, function_of
from ramet.testing.checked import progress
from ramet.types import Need

STALL_S = 0.5  # an event loop that does not turn for so long is blocked
ORIGINAL, FORK = "the original", "a fork"
HOW = {
    "replies": "give replies that change the state and show it (check_plugin: replies={'rollout_step.NAME': […]})",
    "examples": "give examples of calls that change the state and show it (check_plugin: examples={'tools.NAME': […]})",
}


def expect(holds: bool, problem: str) -> None:
    """Raise `AssertionError(problem)` if the condition is false. `problem` says how to fix it."""
    progress()
    if not holds:
        raise AssertionError(problem)


def expect_none(problem: str | None) -> None:
    """Raise `AssertionError(problem)` if there is one: of the checks that a run makes too (`plugins.output_checks`)."""
    expect(problem is None, str(problem))


def expect_async_call(component: object) -> None:
    """Calling `component` must give a coroutine: an async function, or an object whose `__call__` is one."""
    method = getattr(type(component), "__call__", None)  # noqa: B004
    expect(
        inspect.iscoroutinefunction(component) or inspect.iscoroutinefunction(method),
        "__call__ is not async: declare it with `async def`",
    )


def expect_async(function: Any, what: str) -> None:
    """`function` must be declared with `async def`."""
    expect(inspect.iscoroutinefunction(function), f"{what} is not async: declare it with `async def`")


class EventLoopCheck:
    """Catches what blocks the event loop. Use it within the loop: `turn` between calls, `check` after the last.

    A function counts when it blocks twice: the first call may import something, and never again.
    """

    def __init__(self) -> None:
        self._monitor = EventLoopMonitor(STALL_S / 10)
        self._stop = threading.Event()
        self._seen: list[tuple[str, float]] = []  # line, seconds

    def __enter__(self) -> Self:
        self._monitor.begin()
        threading.Thread(target=self._watch, name="ramet-loop-check", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._monitor.end()

    def _watch(self) -> None:
        where, longest = "", 0.0  # of the current stall
        while not self._stop.wait(STALL_S / 10):
            stuck_s = self._monitor.stuck_s()
            if stuck_s >= STALL_S:
                where, longest = self._monitor.where(), stuck_s
            elif longest:
                self._seen.append((where, longest))
                where, longest = "", 0.0

    async def turn(self) -> None:
        """Let the loop run between two calls, so that each counts by itself, and raise as `check` does."""
        for _ in range(2):
            await asyncio.sleep(0)
        self._raise()

    async def check(self) -> None:
        """Raise `AssertionError` for a function that blocked the loop at least twice."""
        await asyncio.sleep(STALL_S / 5)  # the watching thread sees that the loop runs again
        self._raise()

    def _raise(self) -> None:
        times = Counter(function_of(where) for where, _ in self._seen)
        for where, stuck_s in self._seen:
            expect(
                times[function_of(where)] < 2,
                f"blocks the event loop for {stuck_s:.1f} s in {where}, and every rollout with it: await "
                "run_blocking(function, …), asyncio.sleep or an asynchronous client",
            )


def expect_needs(algorithm: Any) -> frozenset[Need]:
    """Return the algorithm's `needs`, which must be a frozenset of `Need`."""
    needs = getattr(algorithm, "needs", None)
    expect(
        isinstance(needs, frozenset) and all(isinstance(need, Need) for need in needs),
        f"needs is {needs!r}: set it to a frozenset of Need, `frozenset()` if nothing is needed",
    )
    assert isinstance(needs, frozenset)
    return needs


def orders(n: int) -> list[list[str]]:
    """Return whose turn it is: `n` turns of the one and then of the other, and in turn."""
    return [[ORIGINAL] * n + [FORK] * n, [FORK] * n + [ORIGINAL] * n, [ORIGINAL, FORK] * n]


def expect_copy(fork: object, state: object) -> None:
    expect(fork is not None, "fork returned None: return a copy of the state")
    expect(fork is not state, "fork returned the state itself: return an independent copy")


def expect_independent(who: str, found: Sequence[object], alone: Sequence[object]) -> None:
    """Expect a state to behave the same next to the other one (`found`) and by itself (`alone`)."""
    expect(
        list(found) == list(alone),
        f"fork shares what the state holds: {who}, together and separately: {first_difference(found, alone)}; copy "
        "everything, also what is inside lists and dicts",
    )


def first_difference(one: Sequence[object], other: Sequence[object]) -> str:
    """Say where two sequences begin to differ, and how."""
    pairs = zip_longest(one, other, fillvalue="nothing")
    return next((f"no. {i} is {a}, or {b}" for i, (a, b) in enumerate(pairs, 1) if a != b), "they are equal")


def expect_exercised(seen: bool, given: str) -> None:
    """Expect that a fork which shared the complete state with its original would have been noticed (`seen`)."""
    expect(seen, f"no fork was exercised: one that shares everything would do the same here; {HOW[given]}")
