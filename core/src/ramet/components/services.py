"""Services for tools, tool sets and rewards when a run starts (`ramet.Services`): limits, a folder, the seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ramet.errors import PluginError
from ramet.helpers.limiter import TokenBucket
from ramet.types import Limiter, Services


class Limiters(Protocol):
    """All limiters of a run, as one process sees them."""

    def limiter(self, name: str, per_s: float, concurrent: int | None = None) -> Limiter:
        """Raises `PluginError` if the name has other limits."""
        ...


@dataclass(slots=True)
class LocalLimiters:
    """Limiters for runs within one process, and inside the process that keeps them for all others."""

    _buckets: dict[str, TokenBucket] = field(default_factory=dict)

    def limiter(self, name: str, per_s: float, concurrent: int | None = None) -> TokenBucket:
        check_limits(name, per_s, concurrent)
        bucket = self._buckets.setdefault(name, TokenBucket(per_s, concurrent))
        check_same_limits(name, (bucket.per_s, bucket.concurrent), (per_s, concurrent))
        return bucket


def check_limits(name: str, per_s: float, concurrent: int | None) -> None:
    if not (isinstance(per_s, int | float) and 0 < per_s < math.inf):
        raise PluginError(f"limiter {name!r}: a rate of {per_s!r} per s; allowed: a finite number over 0")
    if concurrent is not None and not (isinstance(concurrent, int) and concurrent > 0):
        raise PluginError(f"limiter {name!r}: {concurrent!r} concurrent calls; allowed: an integer over 0, or None")


def check_same_limits(name: str, first: tuple[float, int | None], asked: tuple[float, int | None]) -> None:
    if first[0] != asked[0]:
        raise PluginError(
            f"limiter {name!r}: asked for with {asked[0]:g} per s, and before with {first[0]:g} per s; a limiter has "
            "one rate in all of a run"
        )
    if first[1] != asked[1]:
        raise PluginError(
            f"limiter {name!r}: asked for with {asked[1]} concurrent calls, and before with {first[1]}; a limiter has "
            "one number of places in all of a run"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServices:
    """The services of a run in one process. `folder` is where the run's components keep their files."""

    folder: Path
    seed: int
    limiters: Limiters = field(default_factory=LocalLimiters)

    def of(self, component: str) -> Services:
        """Return the services of one component, by the name that the configuration has for it: `tools.search`."""
        return _ComponentServices(self.folder / component, self.seed, self.limiters)


class _ComponentServices:
    """`ramet.Services`. The folder is created at its first use."""

    def __init__(self, folder: Path, seed: int, limiters: Limiters) -> None:
        self._folder = folder
        self._limiters = limiters
        self.seed = seed

    @property
    def folder(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def limiter(self, name: str, per_s: float, concurrent: int | None = None) -> Limiter:
        return self._limiters.limiter(name, per_s, concurrent)
