"""Transfer of weights through Ray's object store, packed into buckets.

The policy's first rank fills buckets, every engine reads them. Where reader and store share a machine nothing is
copied: the tensors that an engine is given are views of shared memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BUCKET_BYTES = 256 << 20
ALIGNMENT = 16  # bytes; a view of another dtype must begin at a multiple of its item


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The position of one tensor in its bucket."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Several tensors, one after another in `data`."""

    pieces: tuple[Piece, ...]
    data: NDArray[np.uint8]


def buckets(weights: Iterable[tuple[str, Tensor]], limit: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """Pack named tensors, in order. A bucket holds up to `limit` bytes, or one larger tensor."""
    found: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in weights:
        if found and size + tensor.nbytes > limit:
            yield _pack(found)
            found, size = [], 0
        found.append((name, tensor.detach()))
        size += _padded(tensor.nbytes)
    if found:
        yield _pack(found)


def tensors(found: Iterable[Bucket]) -> Iterator[tuple[str, Tensor]]:
    """The inverse of `buckets`: names and tensors, in order. Read-only, since Ray's memory is."""
    for bucket in found:
        if not bucket.data.size:
            memory = torch.empty(0, dtype=torch.uint8)
        else:
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # that the memory cannot be written
                memory = torch.from_numpy(bucket.data)
        for piece in bucket.pieces:
            count = int(np.prod(piece.shape, dtype=np.int64)) * piece.dtype.itemsize
            yield piece.name, memory[piece.start : piece.start + count].view(piece.dtype).view(piece.shape)


def _pack(found: list[tuple[str, Tensor]]) -> Bucket:
    pieces, end = [], 0
    for name, tensor in found:
        pieces.append(Piece(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape), start=end))
        end += _padded(tensor.nbytes)
    data: NDArray[Any] = np.zeros(end, np.uint8)
    memory = torch.from_numpy(data)
    for piece, (_, tensor) in zip(pieces, found, strict=True):
        memory[piece.start : piece.start + tensor.nbytes].copy_(tensor.contiguous().view(-1).view(torch.uint8))
    return Bucket(pieces=tuple(pieces), data=data)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
