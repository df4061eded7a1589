"""Which tasks a step gets: a pure function of (number of tasks, seed, step), so a resumed run sees the same ones.

Epochs follow each other without a gap; a batch may span two. Within an epoch no task comes twice and none is lost; a
batch never holds a task twice either (its rollouts would be keyed alike), so where a batch spans two epochs the new one
begins with tasks that are not yet in the batch.
"""

from __future__ import annotations

import hashlib
from random import Random

from ramet.errors import ConfigError


class Sampler:
    """Indices of the tasks of each step."""

    def __init__(self, n: int, tasks_per_step: int, seed: int, shuffle: bool = True) -> None:
        """Raises `ConfigError` if a step needs more tasks than there are."""
        if not 1 <= tasks_per_step <= n:
            raise ConfigError(f"train.tasks_per_step={tasks_per_step}: the data set has {n} tasks; allowed: 1 to {n}")
        self.n = n
        self.tasks_per_step = tasks_per_step
        self.seed = seed
        self.shuffle = shuffle
        self._epoch = 0
        self._order = self._draw(0)

    def batch(self, step: int) -> list[int]:
        """The `tasks_per_step` indices of step `step`, counted from 0."""
        first = step * self.tasks_per_step
        epoch, position = divmod(first, self.n)
        indices = self.order(epoch)[position : position + self.tasks_per_step]
        missing = self.tasks_per_step - len(indices)
        return indices + self.order(epoch + 1)[:missing] if missing else indices

    def order(self, epoch: int) -> list[int]:
        """All indices in the order of this epoch. Each epoch builds on the one before, which fixed a shared batch."""
        if epoch < self._epoch:
            self._epoch, self._order = 0, self._draw(0)
        while self._epoch < epoch:
            self._epoch += 1
            self._order = self._joined(self._order, self._draw(self._epoch), self._epoch)
        return self._order

    def _joined(self, before: list[int], drawn: list[int], epoch: int) -> list[int]:
        shared = epoch * self.n % self.tasks_per_step  # tasks of the epoch before in the batch at the border
        if not shared:
            return drawn
        taken = set(before[-shared:])
        head = [index for index in drawn if index not in taken][: self.tasks_per_step - shared]
        chosen = set(head)
        return head + [index for index in drawn if index not in chosen]

    def _draw(self, epoch: int) -> list[int]:
        order = list(range(self.n))
        if self.shuffle:
            key = hashlib.blake2b(f"{self.seed}/{epoch}".encode(), digest_size=8).digest()
            Random(int.from_bytes(key)).shuffle(order)
        return order
