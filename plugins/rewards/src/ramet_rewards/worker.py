"""The process that compares formulas: `python -m ramet_rewards.worker SOCKET`. One JSON line in, one out.

Formulas can keep a computer algebra system busy for ever, also inside one C call that no exception interrupts. So the
kernel keeps the deadline: SIGALRM with its default action ends the process, and the client sees the socket close.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TextIO

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

MEMORY = 4 << 30  # bytes of address space above what the imports took


def main() -> None:
    logging.disable()  # math-verify warns that it keeps no deadline; this process has one
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _limit_memory()
    with socket.socket(fileno=int(sys.argv[1])) as client, client.makefile("rw", encoding="ascii") as lines:
        _reply(lines, "ready")
        for line in lines:
            request = json.loads(line)
            signal.setitimer(signal.ITIMER_REAL, request["timeout_s"])
            verdict = any_equal(request["golds"], request["answer"])
            signal.setitimer(signal.ITIMER_REAL, 0)
            _reply(lines, verdict)


def any_equal(golds: Sequence[str], answer: str) -> bool:
    """Does the answer equal one of the gold answers? What cannot be parsed or compared equals nothing."""
    found = _parse(answer)
    return any(verify(_parse(gold), found, timeout_seconds=None) for gold in golds)


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
