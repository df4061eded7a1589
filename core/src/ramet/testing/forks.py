"""Forks of states: what a fork and its original do after one another and in turn, for the checks of tools and steps."""

from __future__ import annotations

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


def expect_independent(who: str, found: object, alone: object) -> None:
    """`found`: what it did beside the other; `alone`: what it does by itself."""
    expect(
        found == alone,
        f"fork shares what the state holds: {who} gave {found}, and a state alone {alone}; copy everything, also what "
        "is inside lists and dicts",
    )


def expect_exercised(seen: bool, given: str) -> None:
    """`seen`: a fork that shared the whole state with its original would have been noticed."""
    expect(seen, f"no fork was exercised: one that shares everything would do the same here; {HOW[given]}")
