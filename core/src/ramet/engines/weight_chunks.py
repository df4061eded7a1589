"""Named tensors as bytes one after another, so that a model crosses from one process to another in a few large pieces.

Sender and receiver agree on where each tensor lies: either the sender says it (`Piece`), or both follow from the same
names, types and shapes (`described`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]  # torch does not list it

CHUNK_BYTES = 2**30  # a larger tensor is a chunk by itself
ALIGNMENT = 16  # bytes; a view of another dtype must begin at a multiple of its item

Named = tuple[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The position of one tensor in its chunk."""

    name: str
    dtype: str  # as in `torch.float32`
    shape: tuple[int, ...]
    start: int  # bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return torch.Size(self.shape).numel() * _dtype(self.dtype).itemsize


def grouped(weights: Iterable[Named], limit: int) -> Iterator[list[Named]]:
    """Tensors that make a chunk together, in order: up to `limit` bytes, or one larger tensor."""
    chunk: list[Named] = []
    size = 0
    for name, tensor in weights:
        if chunk and size + tensor.nbytes > limit:
            yield chunk
            chunk, size = [], 0
        chunk.append((name, tensor.detach()))
        size += _padded(tensor.nbytes)
    if chunk:
        yield chunk


def laid_out(group: Sequence[Named]) -> tuple[tuple[Piece, ...], int]:
    """Return the place of each tensor in a chunk, and the bytes of all."""
    pieces, end = [], 0
    for name, tensor in group:
        dtype = str(tensor.dtype).removeprefix("torch.")
        pieces.append(Piece(name=name, dtype=dtype, shape=tuple(tensor.shape), start=end))
        end += _padded(tensor.nbytes)
    return tuple(pieces), end


def described(shapes: Iterable[tuple[str, str, Sequence[int]]]) -> Iterator[Named]:
    """Tensors without values from names, types and shapes, for a receiver that groups as its sender does."""
    for name, dtype, shape in shapes:
        yield name, torch.empty(tuple(shape), dtype=_dtype(dtype), device="meta")


def pack(group: Sequence[Named], pieces: Sequence[Piece], memory: Tensor) -> None:
    """Copy the tensors of a chunk into `memory`, bytes `[size]` on any device."""
    for (_, tensor), piece in zip(group, pieces, strict=True):
        memory[piece.start : piece.start + piece.size].copy_(tensor.contiguous().view(-1).view(torch.uint8))


def unpack(pieces: Iterable[Piece], memory: Tensor) -> Iterator[Named]:
    """The tensors of a chunk, as views of `memory`, bytes `[size]`."""
    for piece in pieces:
        data = memory[piece.start : piece.start + piece.size]
        yield piece.name, data.view(_dtype(piece.dtype)).view(piece.shape)


def join_gloo(address: str, port: int, *, rank: int, size: int, timeout_s: float) -> Any:
    """A group of the sender, rank 0, which listens at the address, and of all receivers; not the default group of any
    process.

    A `ProcessGroupGloo`, of which torch's stubs know too little.
    """
    timeout = timedelta(seconds=timeout_s)
    store = TCPStore(address, port, size, is_master=rank == 0, timeout=timeout)
    return ProcessGroupGloo(store, rank, size, timeout)


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
