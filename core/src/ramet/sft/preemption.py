"""SIGTERM and SIGINT during `ramet sft`: the step that has begun is carried through and saved, then the run ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ramet.runs.stopped import StopListener


class SftPreemption(StopListener):
    """Inside `deferred` a signal is noted, for whoever looks at `asked`."""

    def __init__(self) -> None:
        super().__init__()
        self._deferred = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A signal raises nothing: `asked` tells of it."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _defers(self) -> bool:
        return self._deferred
