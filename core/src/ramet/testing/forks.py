"""Forks of states: what a fork and its original do after one another and in turn, for the checks of tools and steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from ramet.testing.expect import expect

ORIGINAL, FORK = "the original", "a fork"
HOW = {
    "replies": "give replies that change the state and show it (check_plugin: replies={'rollout_step.NAME': […]})",
    "examples": "give examples of calls that change the state and show it (check_plugin: examples={'tools.NAME': […]})",
}


def orders(n: int) -> list[list[str]]:
    """Whose turn it is: `n` turns of the one and then of the other, and in turn."""
    return [[ORIGINAL] * n + [FORK] * n, [FORK] * n + [ORIGINAL] * n, [ORIGINAL, FORK] * n]


def expect_copy(fork: object, state: object) -> None:
    expect(fork is not None, "fork returned None: return a copy of the state")
    expect(fork is not state, "fork returned the state itself: return an independent copy")


def expect_independent(who: str, found: Sequence[object], alone: Sequence[object]) -> None:
    """`found`: what it did beside the other; `alone`: what it does by itself."""
    expect(
        list(found) == list(alone),
        f"fork shares what the state holds: {who}, beside the other and alone: {first_difference(found, alone)}; copy "
        "everything, also what is inside lists and dicts",
    )


def first_difference(one: Sequence[object], other: Sequence[object]) -> str:
    """Where two sequences begin to differ, and how."""
    pairs = zip_longest(one, other, fillvalue="nothing")
    return next((f"no. {i} is {a}, or {b}" for i, (a, b) in enumerate(pairs, 1) if a != b), "they are equal")


def expect_exercised(seen: bool, given: str) -> None:
    """`seen`: a fork that shared the whole state with its original would have been noticed."""
    expect(seen, f"no fork was exercised: one that shares everything would do the same here; {HOW[given]}")
