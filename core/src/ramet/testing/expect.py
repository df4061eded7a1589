"""What all checks share: a failure is an `AssertionError` with a sentence (also under `python -O`)."""

from __future__ import annotations

import inspect
from typing import Any

from ramet.types import Need


def expect(holds: bool, problem: str) -> None:
    """Raise `AssertionError(problem)` unless it holds. `problem` says what is wrong and how to mend it."""
    if not holds:
        raise AssertionError(problem)


def expect_none(problem: str | None) -> None:
    """Raise `AssertionError(problem)` if there is one: of the checks that a run makes too (`ramet.output_checks`)."""
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


def expect_needs(algorithm: Any) -> frozenset[Need]:
    """The algorithm's `needs`, which must be a frozenset of `Need`."""
    needs = getattr(algorithm, "needs", None)
    expect(
        isinstance(needs, frozenset) and all(isinstance(need, Need) for need in needs),
        f"needs is {needs!r}: set it to a frozenset of Need, `frozenset()` if nothing is needed",
    )
    assert isinstance(needs, frozenset)
    return needs
