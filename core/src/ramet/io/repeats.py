"""Warnings that may come again and again: each kind is shown once, then counted, and summed up at the end.

The log file of a run (`run_log`) has every one of them; the console shows the first, and every tenth with its number.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter

EVERY = 10  # of one kind is shown again
_KIND, _NUMBER = "ramet_kind", "ramet_number"  # attributes of a log record
_lock = threading.Lock()
_seen: Counter[str] = Counter()
_by_step: set[str] = set()


def warn(
    logger: logging.Logger, kind: str, message: str, *arguments: object, by_step: bool = False, trace: bool = False
) -> None:
    """Log a warning that may come again. `kind` names it in the summary: "rewards are equal".

    `by_step`: it comes at most once in a step. `trace`: with the traceback of the current exception.
    """
    log(logger, logging.WARNING, kind, message, *arguments, by_step=by_step, trace=trace)


def log(
    logger: logging.Logger,
    level: int,
    kind: str,
    message: str,
    *arguments: object,
    by_step: bool = False,
    trace: bool = False,
) -> None:
    with _lock:
        _seen[kind] += 1
        number = _seen[kind]
        if by_step:
            _by_step.add(kind)
    logger.log(level, message, *arguments, extra={_KIND: kind, _NUMBER: number}, exc_info=trace, stacklevel=3)


def kind_of(record: logging.LogRecord) -> str | None:
    """Return the kind of a record that `log` made; None for other records."""
    kind: str | None = getattr(record, _KIND, None)
    return kind


def is_shown(record: logging.LogRecord) -> bool:
    """Whether the record is shown on the console."""
    number = getattr(record, _NUMBER, 1)
    return bool(number == 1 or number % EVERY == 0)


def suffix(record: logging.LogRecord) -> str:
    """The console's addition to a warning that was shown before."""
    number = getattr(record, _NUMBER, 1)
    return "" if number == 1 else f" (seen {number} times so far)"


def forget() -> None:
    """A new run begins."""
    with _lock:
        _seen.clear()
        _by_step.clear()


def report(logger: logging.Logger, steps: int | None = None) -> None:
    """Log how often each kind was seen that was seen more than once, and forget all. `steps`: that this process did."""
    with _lock:
        repeated = [(kind, number, kind in _by_step) for kind, number in _seen.items() if number > 1]
    forget()
    for kind, number, by_step in repeated:
        where = f"in {number} of {steps} steps" if by_step and steps else f"{number} times"
        logger.warning("%s: seen %s", kind, where)
