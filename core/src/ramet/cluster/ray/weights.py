"""Transfer of weights through Ray's object store, packed into buckets.

The policy's first rank fills buckets, every engine reads them. Where reader and store share a machine nothing is
copied: the tensors that an engine is given are views of shared memory. From a GPU, a bucket is packed there and crosses
into one of two buffers of pinned memory while the one before it goes into the store.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramet.engines.weight_chunks import CHUNK_BYTES, Named, Piece, grouped, laid_out, pack, unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Several tensors, one after another in `data`."""

    pieces: tuple[Piece, ...]
    data: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Crossing:
    """A bucket on its way to the host; it is there when `arrived` is."""

    pieces: tuple[Piece, ...]
    memory: Tensor  # [size] uint8
    arrived: torch.cuda.Event | None

    def bucket(self) -> Bucket:
        if self.arrived is not None:
            self.arrived.synchronize()
        return Bucket(pieces=self.pieces, data=self.memory.numpy())


def buckets(weights: Iterable[tuple[str, Tensor]], limit: int = CHUNK_BYTES) -> Iterator[Bucket]:
    """Pack named tensors, in order. A bucket has up to `limit` bytes, or one larger tensor. From a GPU, its memory is
    used again when the next but one is asked for.
    """
    staging = _Staging(limit)
    before: _Crossing | None = None
    for group in grouped(weights, limit):
        crossing = _from_gpu(group, staging) if group[0][1].is_cuda else _from_host(group)
        if before is not None:
            yield before.bucket()
        before = crossing
    if before is not None:
        yield before.bucket()


def tensors(received: Iterable[Bucket]) -> Iterator[tuple[str, Tensor]]:
    """The inverse of `buckets`: names and tensors, in order. Read-only, since Ray's memory is."""
    for bucket in received:
        if not bucket.data.size:
            memory = torch.empty(0, dtype=torch.uint8)
        else:
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # that the memory cannot be written
                memory = torch.from_numpy(bucket.data)
        yield from unpack(bucket.pieces, memory)


class _Staging:
    """Two buffers of pinned memory by turns, of `limit` bytes or of a tensor that is larger."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffers = [torch.empty(0, dtype=torch.uint8)] * 2

    def next(self, size: int) -> Tensor:
        """`[size]` uint8."""
        first, second = self._buffers
        if len(first) < size:
            first = torch.empty(max(size, self._limit), dtype=torch.uint8, pin_memory=True)
        self._buffers = [second, first]
        return first[:size]


def _from_host(group: list[Named]) -> _Crossing:
    pieces, size = laid_out(group)
    memory = torch.empty(size, dtype=torch.uint8)
    pack(group, pieces, memory)
    return _Crossing(pieces, memory, None)


def _from_gpu(group: list[Named], staging: _Staging) -> _Crossing:
    pieces, size = laid_out(group)
    packed = torch.empty(size, dtype=torch.uint8, device=group[0][1].device)
    pack(group, pieces, packed)
    memory = staging.next(size)
    memory.copy_(packed, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()
    return _Crossing(pieces, memory, arrived)
