"""The micro-batch that a rank computes now, for observers: written by the computing thread, read by others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PassProgress:
    """`number` counts from 1. For an update, `total` is estimated from the current optimiser step's micro-batches."""

    what: str
    number: int
    total: int

    def __str__(self) -> str:
        return f"{self.what} {self.number}/{self.total}"


class PassCounter:
    """Counter of one rank's passes. `now` is None between passes."""

    def __init__(self) -> None:
        self.now: PassProgress | None = None

    def over(self, what: str, batches: Sequence[T], *, earlier: int = 0, passes: int = 1) -> Iterator[T]:
        """The batches, counted. `earlier` of `passes` passes of about this length are done already."""
        try:
            for i, batch in enumerate(batches, start=1):
                self.now = PassProgress(what, earlier * len(batches) + i, passes * len(batches))
                yield batch
        finally:
            self.now = None
