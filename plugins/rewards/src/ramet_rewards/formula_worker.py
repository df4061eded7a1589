"""The process that compares formulas: `python -m ramet_rewards.formula_worker SOCKET`. One JSON line in, one out.

Formulas can keep a computer algebra system busy for ever, also inside one C call that no exception interrupts. So the
kernel keeps the limit: SIGPROF, sent after so much CPU time of this process, ends it by its default action. A loaded
host takes no CPU time, so it cannot make an answer wrong. Gold answers are parsed and computed first, under a limit of
their own: what they cost is not the answer's doing.

The process itself only imports; a copy of it compares. Whatever ends the copy, the next one is there at once, since it
imports nothing: a batch of answers that each end one costs the time that they are allowed, and no starts.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import resource
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy.core.random import seed

from ramet.helpers import Caller

MEMORY = 4 << 30  # bytes of address space above what the imports took
PR_SET_PDEATHSIG = 1
GOLDS_S = 60.0  # CPU time for the gold answers of a task
FIRST = r"\frac{x^2 + 1}{\sqrt{2}}"


def main() -> None:
    logging.disable()  # math-verify warns that it keeps no deadline; this process has one
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    any_equal([_parse(FIRST)], FIRST)  # what the first comparison loads is there for all copies
    caller = Caller()
    caller.ready()
    while (code := _wait_for_copy(caller)) != 0:
        caller.copy_ended(max(0, -code))


def _wait_for_copy(caller: Caller) -> int:
    """Run one to its end. Its exit code, negative for a signal; 0 if there is nothing more to do."""
    own_pid = os.getpid()
    copy = os.fork()
    if copy:
        return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
    code = 1
    try:
        _end_with_parent(own_pid)
        caller.end_with()
        _limit_memory()
        _compare_all(caller)
        code = 0
    finally:
        os._exit(code)


def _end_with_parent(parent: int) -> None:
    """The kernel ends this process then (prctl(2)): a thread could not, while algebra computes inside one C call."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) or os.getppid() != parent:
        os._exit(1)


def _compare_all(caller: Caller) -> None:
    for request in caller.requests():
        with _cpu_limit(GOLDS_S):
            golds = [_gold(gold) for gold in request["golds"]]
        caller.prepared()
        with _cpu_limit(request["timeout_s"]):
            verdict = any_equal(golds, request["answer"])
        caller.reply(verdict)


def any_equal(golds: Sequence[list[object]], answer: str) -> bool:
    """Whether the answer equals one of the parsed gold answers. What cannot be parsed or compared equals nothing."""
    seed(0)  # sympy compares some terms at random points: the same answer has one score
    try:
        parsed = _parse(answer)
        return any(verify(gold, parsed, timeout_seconds=None) for gold in golds)
    except Exception:  # whatever its text does to the parser is the answer's doing
        return False


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


@functools.lru_cache(maxsize=256)
def _gold(text: str) -> list[object]:
    """Parsed, and compared once, so that its computing time is spent here."""
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
        own_bytes = int(sizes.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    wanted = own_bytes + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


if __name__ == "__main__":
    main()
