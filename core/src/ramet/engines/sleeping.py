"""Engines that can make room on a device that they share with the trainer (`cluster.colocate=true`)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

# What an engine without a way to free memory says once.
ONLY_PAUSES = "the engine %s cannot free memory here (on a CPU, or cluster.colocate=false): asleep, it pauses"


@runtime_checkable
class Sleeper(Protocol):
    """An engine that can give its memory back for a while. A call while already asleep, or awake, does nothing."""

    async def sleep(self) -> None:
        """Compute nothing and hold as little device memory as possible until `wake`.

        Weights go to host memory and every cache is dropped. Requests under way, and those that come, wait; weights may
        not be updated meanwhile (`RuntimeError`).
        """
        ...

    async def wake(self) -> None:
        """Take the memory back and go on, with the weights of before. It ends a `pause`, too."""
        ...
