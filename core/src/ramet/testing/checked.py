"""The wrapper of every check: a time limit that names the line that hangs, the plugin's line, short messages."""

from __future__ import annotations

import asyncio
import functools
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import CodeType, FrameType
from typing import ClassVar, ParamSpec, TypeVar

from ramet.plugins.plugin_code import defined_at, hanging_at, raised_at

P = ParamSpec("P")
T = TypeVar("T")
LIMIT_S = 60.0  # a check in which no call ended for so long hangs
GRACE_S = 5.0  # for closing its resources after that
HEAD, TAIL = 1000, 500  # characters of a message that are kept
LINE = re.compile(r"\.py:\d+\)")


def checked(method: str = "__call__", *, limited: bool = True) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a check of a component, its first argument: any failure becomes one `AssertionError`.

    It names the plugin's line: where it raised or hangs, otherwise the definition of the method that the message begins
    with, or of `method`.
    """

    def wrap(check: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(check)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                with time_limit(run.__wrapped__.__code__, LIMIT_S) if limited else nullcontext():
                    return check(*args, **kwargs)
            except AssertionError as error:
                problem, cause = str(error), error
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                raise AssertionError(_short(crash(error))) from error
            if not LINE.search(problem):
                problem += defined_at(args[0], _begins_with(problem, args[0]) or method)
            raise AssertionError(_short(problem)) from cause

        return run

    return wrap


def _begins_with(problem: str, component: object) -> str:
    """Return the method that the problem begins with, or nothing."""
    word = problem.partition(" ")[0].strip(":")
    return word if callable(getattr(component, word or "-", None)) else ""


def crash(error: BaseException) -> str:
    """Say what a plugin raised, and where."""
    return f"crashed with {type(error).__name__}: {error}{raised_at(error)}"


def progress() -> None:
    """Begin the limit again: a call of the plugin has ended."""
    if _Limit.current is not None:
        _Limit.current.renew()


def _short(problem: str) -> str:
    """Shorten a problem, and keep its end, which says what to do."""
    if len(problem) <= HEAD + TAIL:
        return problem
    return f"{problem[:HEAD]} … ({len(problem):,} characters) … {problem[-TAIL:]}"


@contextmanager
def time_limit(check: CodeType, seconds: float) -> Iterator[None]:
    """Raise `AssertionError` with the line that hangs once no call within `check` has ended for so long.

    Works only in the main thread, since it needs a signal. One within another does nothing.
    """
    if _Limit.current is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    limit = _Limit.current = _Limit(check, seconds)
    handler = signal.signal(signal.SIGALRM, limit.on_alarm)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except BaseException as error:
        if not limit.hung:
            raise
        raise AssertionError(limit.hung) from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)
        _Limit.current = None
    if limit.hung:  # the event loop or the plugin caught it
        raise AssertionError(limit.hung)


class _Hangs(BaseException):
    """Raised where the check hangs; no `except Exception` of a plugin catches it."""


class _Limit:
    """The one that runs."""

    current: ClassVar[_Limit | None] = None

    def __init__(self, check: CodeType, seconds: float) -> None:
        self._check = check
        self._seconds = seconds
        self.hung = ""

    def renew(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, GRACE_S if self.hung else self._seconds)

    def on_alarm(self, number: int, frame: FrameType | None) -> None:
        assert frame is not None
        try:
            waiting = asyncio.all_tasks()
        except RuntimeError:  # no event loop runs
            waiting = set()
        where = hanging_at(frame, waiting, self._check)
        self.hung = self.hung or (
            f"hangs{f' in {where}' if where else ''}: no call has ended for {self._seconds:g} s; end every loop, and "
            "give what it waits for a time-out and raise InfraError"
        )
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)
        raise _Hangs(self.hung)
