"""The process that compares formulas: `python -m ramet_rewards.formula_worker SOCKET`. One JSON line in, one out.

Formulas can keep a computer algebra system busy for ever, also inside one C call that no exception interrupts. So the
kernel keeps the limit: SIGPROF, sent after so much CPU time of this process, ends it by its default action. A loaded
host takes no CPU time, so it cannot make an answer wrong. Gold answers are parsed and computed first, under a limit of
their own: what they cost is not the answer's doing.
"""

from __future__ import annotations

import functools
import json
import logging
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy.core.random import seed

from ramet_rewards.processes import end_with

MEMORY = 4 << 30  # bytes of address space above what the imports took
GOLDS_S = 60.0  # CPU time for the gold answers of a task


def main() -> None:
    logging.disable()  # math-verify warns that it keeps no deadline; this process has one
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _limit_memory()
    with socket.socket(fileno=int(sys.argv[1])) as client, client.makefile("rw", encoding="ascii") as lines:
        end_with(client)
        _reply(lines, "ready")
        for line in lines:
            request = json.loads(line)
            with _cpu_limit(GOLDS_S):
                golds = [_gold(gold) for gold in request["golds"]]
            _reply(lines, "prepared")
            with _cpu_limit(request["timeout_s"]):
                verdict = any_equal(golds, request["answer"])
            _reply(lines, verdict)


def any_equal(golds: Sequence[list[object]], answer: str) -> bool:
    """Does the answer equal one of the parsed gold answers? What cannot be parsed or compared equals nothing."""
    seed(0)  # sympy compares some terms at random points: the same answer has one score
    try:
        found = _parse(answer)
        return any(verify(gold, found, timeout_seconds=None) for gold in golds)
    except Exception:  # whatever its text does to the parser is the answer's doing
        return False


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


@functools.lru_cache(maxsize=256)
def _gold(text: str) -> list[object]:
    """Parsed, and compared once, so that what it takes to compute it is spent here."""
    gold = _parse(text)
    verify(gold, _parse("1.5"), timeout_seconds=None)
    return gold


def _parse(text: str) -> list[object]:
    formula = text.strip().removeprefix("$").removesuffix("$")
    parsed: list[object] = parse(
        f"${formula}$", [LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=None
    )
    return parsed


def _limit_memory() -> None:
    with open("/proc/self/statm") as sizes:
        own = int(sizes.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    wanted = own + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _reply(lines: TextIO, message: object) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()


if __name__ == "__main__":
    main()
