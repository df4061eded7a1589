"""The ranks of one training, as one of them sees them: its number, and how they agree.

Each rank is a process with the environment that torchrun gives its processes. `ramet sft` starts its ranks itself, or
is started as every one of them by torchrun, on one node or on several.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from ramet.errors import RametError

T = TypeVar("T")
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process among `size` ranks. A single one has joined no group and agrees with itself."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on its node
    local_size: int = 1
    joins: bool = False  # whether it is one of the ranks of a process group, be it the only one

    @property
    def first(self) -> bool:
        """The one that decides, writes and reports."""
        return self.rank == 0

    @contextmanager
    def joined(self, timeout_s: float, *, gpus: bool, store: Store | None = None) -> Iterator[None]:
        """Join the process group, which exists inside, over gloo and, with a GPU for each rank, NCCL.

        Ranks find each other through `store`, or at the address of the environment. This and every later collective
        operation raise after `timeout_s`.
        """
        if not self.joins:
            yield
            return
        if gpus:
            torch.cuda.set_device(self.local_rank)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpus else "gloo",
            timeout=timedelta(seconds=timeout_s),
            store=store,
            rank=self.rank,
            world_size=self.size,
        )
        yield
        dist.destroy_process_group()  # not after an error, when it could wait for ranks that are gone

    def from_first(self, make: Callable[[], T]) -> T:
        """The result or exception (a `RametError`) of `make` on the first rank, given to every rank."""
        if not self.joins:
            return make()
        sent: list[Any] = [None]
        if self.first:
            try:
                sent = [(make(), None)]
            except RametError as error:
                sent = [(None, error)]
        dist.broadcast_object_list(sent, src=0)
        value, raised = sent[0]
        if raised is not None:
            raise raised
        result: T = value
        return result

    def any(self, mine: bool) -> bool:
        """Whether it is so on any rank."""
        if not self.joins:
            return mine
        count = torch.tensor(int(mine))
        dist.all_reduce(count)
        return bool(count)

    def total(self, mine: Sequence[float]) -> list[float]:
        """The sum over all ranks, of each value."""
        sums = torch.tensor(mine, dtype=torch.float64)
        if self.joins:
            dist.all_reduce(sums)
        return sums.tolist()


ALONE = World()


def launched_world() -> World | None:
    """The rank that a launcher such as torchrun made of this process; None without one, or if it made only one."""
    if os.environ.get("WORLD_SIZE", "1") == "1" or "RANK" not in os.environ:
        return None
    return world_of_environment()


def world_of_environment() -> World:
    """The rank that the environment describes."""
    rank, size, local_rank, local_size = (int(os.environ.get(name, 0)) for name in VARIABLES[:4])
    return World(rank=rank, size=size, local_rank=local_rank, local_size=local_size, joins=True)


def missing_variables() -> list[str]:
    """Variables that a launcher left out of the environment of its ranks."""
    return [name for name in VARIABLES if name not in os.environ]
