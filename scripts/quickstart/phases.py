"""What a quickstart spends."""

from __future__ import annotations

import gc
import logging
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("ramet.quickstart")


class Phases:
    """Seconds and peak memory per phase, and a line on the screen when one begins."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.peak_gb: dict[str, float] = {}  # of this process until the end of the phase

    @contextmanager
    def __call__(self, name: str, what: str) -> Iterator[None]:
        logger.info("== %s", what)
        started = time.monotonic()
        yield
        gc.collect()
        self.seconds[name] = round(time.monotonic() - started, 1)
        self.peak_gb[name] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)
