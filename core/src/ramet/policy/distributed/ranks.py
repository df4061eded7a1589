"""The process group of a policy's ranks: joining it, and exchanging numbers and small objects.

Those go through host memory (gloo) whatever the device; only FSDP moves tensors. Every wait ends after the deadline
that was given to `join_ranks`.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ramet.errors import InfraError

T = TypeVar("T")
_timeout: timedelta | None = None  # of this process's groups; torch would give new ones 30 minutes


def join_ranks(*, rank: int, world_size: int, address: str, timeout_s: float) -> None:
    """Join the other ranks at `address` (`tcp://HOST:PORT`, where rank 0 listens). Every rank calls this once.

    With CUDA each rank uses another device: the only one it sees, or one by its rank. `timeout_s` bounds the joining
    and every later exchange. Raises `InfraError`.
    """
    if dist.is_initialized():
        raise RuntimeError(f"policy rank {rank}: this process has joined {dist.get_world_size()} ranks already")
    global _timeout
    _timeout = timedelta(seconds=timeout_s)
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            init_method=address,
            rank=rank,
            world_size=world_size,
            timeout=_timeout,
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise InfraError(
            f"policy rank {rank} of {world_size} did not reach the others at {address} within {timeout_s:g} s "
            f"(cluster.timeout_s): {error}"
        ) from error


def require_ranks(rank: int, world_size: int) -> None:
    """Raise `RuntimeError` unless this process has joined as `rank` of `world_size`. One rank needs no group."""
    joined = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if joined != (rank, world_size):
        raise RuntimeError(
            f"policy rank {rank} of {world_size}: this process is rank {joined[0]} of {joined[1]}; call "
            "join_ranks first"
        )


def sum_over_ranks(value: float) -> float:
    """The sum of every rank's value; the value itself if there is one rank."""
    if not dist.is_initialized():
        return value
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)


def gather_on_first(value: T) -> list[T] | None:
    """Every rank's value in the ranks' order on rank 0, None on others. All ranks call it."""
    if not dist.is_initialized():
        return [value]
    out: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, out)
    return out


def gather_on_all(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Every rank's value in the ranks' order, on all ranks. All ranks of `group` call it; None: all there are."""
    if not dist.is_initialized():
        return [value]
    out: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(out, value, group)
    return cast("list[T]", out)


def sequence_parallel_group(size: int) -> dist.ProcessGroup | None:
    """The group of `size` consecutive ranks to which this rank belongs; None for 1. All ranks call it."""
    if size == 1:
        return None
    starts = range(0, dist.get_world_size(), size)
    groups = [dist.new_group(list(range(first, first + size)), timeout=_timeout) for first in starts]
    return cast("dist.ProcessGroup", groups[dist.get_rank() // size])


@cache
def replica_groups(replicas: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """The ranks that have the same shard as this one, one in each replica, and the consecutive ranks of its replica.

    Made once in a process. All ranks call it.
    """
    ranks = torch.arange(dist.get_world_size()).view(replicas, -1)

    def own_group(groups: Tensor) -> dist.ProcessGroup:
        created = [dist.new_group(members, timeout=_timeout) for members in groups.tolist()]
        place = int((groups == dist.get_rank()).any(1).nonzero())
        return cast("dist.ProcessGroup", created[place])

    return own_group(ranks.T), own_group(ranks)


def host_group() -> dist.ProcessGroup | None:
    """A separate group of all ranks, for a thread that exchanges while other threads compute; None for one rank."""
    if not dist.is_initialized():
        return None
    return cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=_timeout))
