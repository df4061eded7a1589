"""An event loop for shared machines: its clock counts this process's CPU time and the time that it means to sleep.

Other programs on the machine make neither longer, so what it measures is the wall time of an undisturbed run. It never
really sleeps, and is right only for programs that wait for nothing but timers.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from typing import Any


class _Selector(selectors.DefaultSelector):
    """Skips the time that the loop would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is not None and timeout > 0:
            self.skipped_s += timeout
        return ready


class QuietLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Selector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return time.process_time() + self._skipping.skipped_s
