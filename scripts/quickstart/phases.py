"""What a quickstart spends."""

from __future__ import annotations

import ctypes
import gc
import logging
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger("ramet.quickstart")


class Phases:
    """Seconds and peak memory per phase, and a line on the screen when one begins."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.peak_gb: dict[str, float] = {}  # of this process in the phase, or until its end where Linux cannot forget

    @contextmanager
    def __call__(self, name: str, what: str) -> Iterator[None]:
        logger.info("== %s", what)
        _forget_peak()
        started = time.monotonic()
        yield
        gc.collect()
        self.seconds[name] = round(time.monotonic() - started, 1)
        self.peak_gb[name] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)


def _forget_peak() -> None:
    """Give back memory that the phase before has freed, and begin to measure the peak again, where the system can."""
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError as error:
        logger.debug("peaks include those of phases before: %s", error)
