"""Order of tasks. Deterministic, with a small state: a resumed run sees the tasks that it would have seen.

Epochs follow each other without a gap; a step may span two. Within an epoch no task comes twice and none is lost; a
step never has a task twice either (its rollouts would have equal keys). If a task's turn comes again in a step that has
it already, it is passed over, and comes first in the next step.

With weights every data source has separate epochs. Each draw goes to the source that is furthest below its share, so
shares are exact over any run of draws, not on average.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Any

from ramet.errors import ConfigError, raise_all

ALL = ""  # the one stream of a sampler without weights


class Sampler:
    """Draws indices of tasks. `state` is JSON; the orders of the epochs follow from the seed and are not in it."""

    def __init__(
        self,
        n: int,
        tasks_per_step: int,
        seed: int,
        shuffle: bool = True,
        *,
        sources: Sequence[str] = (),
        weights: Mapping[str, float] | None = None,
        difficulty: Sequence[float] | None = None,
        key: str = "train.tasks_per_step",
    ) -> None:
        """`sources` and `difficulty` have one value per task; with `difficulty` every epoch goes from easy to hard.
        `key` is what `tasks_per_step` was set by, for messages.

        Raises `ConfigErrors` if a step needs more tasks than the data have, or weights and sources do not fit.
        """
        if not 1 <= tasks_per_step <= n:
            raise ConfigError(f"{key}={tasks_per_step}: the data set has {n} tasks; allowed: 1 to {n}")
        self.n = n
        self.seed = seed
        self.shuffle = shuffle
        self.difficulty = difficulty
        total = sum((weights or {}).values())
        self.shares = {name: weight / total for name, weight in (weights or {}).items() if weight > 0} or {ALL: 1.0}
        by_source: dict[str, list[int]] = {}
        for index in range(n):
            by_source.setdefault(sources[index] if weights else ALL, []).append(index)
        if weights:
            raise_all(_weight_problems(weights, self.shares, by_source, f"{key}={tasks_per_step}", tasks_per_step))
        self._streams = {name: _Stream(self, name, by_source[name]) for name in self.shares}

    def draw(self, count: int, taken: Collection[int] = ()) -> list[int]:
        """The next `count` indices that are not among `taken`; fewer if the data have no more."""
        drawn: list[int] = []
        held = set(taken)
        while len(drawn) < count:
            index = self._next(held)
            if index is None:
                break
            held.add(index)
            drawn.append(index)
        return drawn

    def _next(self, held: set[int]) -> int | None:
        total = sum(stream.drawn for stream in self._streams.values()) + 1
        by_lack = sorted(self._streams, key=lambda name: self._streams[name].drawn - self.shares[name] * total)
        draws = (self._streams[name].draw(held) for name in by_lack)
        return next((index for index in draws if index is not None), None)

    def state(self) -> dict[str, Any]:
        """The state for `restore`, for JSON."""
        return {name: stream.state() | {"share": self.shares[name]} for name, stream in self._streams.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken. Other weights apply from here on; earlier draws are not balanced.

        Raises `ConfigError` if it is of other data sources.
        """
        if state.keys() != self._streams.keys():
            raise ConfigError(
                f"data.weights: the checkpoint drew from {_named(state)}, this run draws from {_named(self._streams)}"
            )
        for name, stream in self._streams.items():
            stream.restore(state[name])
        if any(state[name]["share"] != share for name, share in self.shares.items()):
            for stream in self._streams.values():
                stream.drawn = 0

    def order(self, name: str, indices: Sequence[int], epoch: int) -> list[int]:
        """The tasks of a stream in the order of one epoch."""
        order = list(indices)
        if self.shuffle:
            text = f"{self.seed}/{name}/{epoch}" if name else f"{self.seed}/{epoch}"
            Random(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())).shuffle(order)
        if self.difficulty is not None:
            order.sort(key=self.difficulty.__getitem__)  # stable: equally hard ones stay shuffled
        return order


class _Stream:
    """The endless sequence of the tasks of one data source, epoch after epoch."""

    def __init__(self, sampler: Sampler, name: str, indices: list[int]) -> None:
        self.drawn = 0
        self._sampler, self._name, self._indices = sampler, name, indices
        self._passed: list[int] = []  # tasks whose turn came while the step held them
        self._begin(0)

    def _begin(self, epoch: int, position: int = 0) -> None:
        self._epoch, self._position = epoch, position
        self._order = self._sampler.order(self._name, self._indices, epoch)

    def draw(self, held: set[int]) -> int | None:
        """The next task that the step does not have; None if it has all of them."""
        if held.issuperset(self._indices):
            return None
        self.drawn += 1
        for number, index in enumerate(self._passed):
            if index not in held:
                return self._passed.pop(number)
        while True:
            if self._position == len(self._order):
                self._begin(self._epoch + 1)
            index = self._order[self._position]
            self._position += 1
            if index not in held:
                return index
            self._passed.append(index)

    def state(self) -> dict[str, Any]:
        return {
            "epoch": self._epoch,
            "position": self._position,
            "passed": list(self._passed),
            "drawn": self.drawn,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._begin(state["epoch"], state["position"])
        self._passed = list(state["passed"])
        self.drawn = state["drawn"]


def _weight_problems(
    weights: Mapping[str, float],
    shares: Mapping[str, float],
    by_source: Mapping[str, list[int]],
    setting: str,
    tasks_per_step: int,
) -> list[str]:
    has = ", ".join(sorted(by_source))
    problems = [
        f"data.weights.{name}: the data has no such source; it has {has}" for name in weights.keys() - by_source
    ]
    problems += [
        f"data.weights: has no weight for data source {name!r}; give one, 0 to leave it out"
        for name in by_source.keys() - weights.keys()
    ]
    for name, share in shares.items():
        there = len(by_source.get(name, ()))
        if there and share * tasks_per_step > there:
            problems.append(
                f"data.weights.{name}={weights[name]:g}: a share of {share:.3g} of {setting} is more than the {there} "
                "tasks of this source"
            )
    return sorted(problems)


def _named(streams: Mapping[str, Any]) -> str:
    return "all data alike" if ALL in streams else f"weighted {', '.join(streams)}"
