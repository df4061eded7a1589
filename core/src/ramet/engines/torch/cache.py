"""The static KV cache: one row of keys and values per slot, written in place.

Rows are never cleared between sequences: a position after a sequence's end may have any finite value, because the mask
gives it exactly no weight. The last position is scratch, where padding writes.

On a CPU with Linux the complete cache is mapped at once. The system gives it memory by pages of 4 KiB when they are
first written: only the used slots and lengths take memory, with the shapes and bits of a cache that is allocated in
full.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys

import torch
from torch import Tensor

from ramet.errors import ConfigError

ROUND = 16  # lengths (and slots of deterministic engines) are multiples of it: shapes repeat, rows stay aligned


def round_up(n: int) -> int:
    return -(-n // ROUND) * ROUND


class KVCache:
    """Keys and values of all layers: `[layers, slots, kv_heads, length, head_dim]`."""

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        kv_heads: int,
        max_tokens: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.length = round_up(max_tokens + 1)
        self.scratch = self.length - 1
        shape = (layers, slots, kv_heads, self.length, head_dim)
        self._pages: list[mmap.mmap] = []
        self.keys, self.values = self._zeros(shape, dtype, device), self._zeros(shape, dtype, device)
        self._heads = torch.arange(kv_heads, device=device)
        self._flat = [(k.view(-1, head_dim), v.view(-1, head_dim)) for k, v in zip(self.keys, self.values, strict=True)]

    def addresses(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Addresses that the rows of `[R]` slots at `[R, T]` positions are written to: `[R * T * kv_heads]`."""
        rows = slots[:, None, None] * len(self._heads) + self._heads
        return (rows * self.length + positions[:, :, None]).reshape(-1)

    def write(self, layer: int, addresses: Tensor, keys: Tensor, values: Tensor) -> None:
        """Keys and values `[N, kv_heads, head_dim]` of one layer."""
        into_keys, into_values = self._flat[layer]
        into_keys.index_copy_(0, addresses, keys.reshape(-1, keys.shape[-1]))
        into_values.index_copy_(0, addresses, values.reshape(-1, values.shape[-1]))

    def read(self, layer: int, slots: slice | Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values `[R, kv_heads, length, head_dim]`: views for a slice of slots, copies for chosen ones."""
        keys, values = self.keys[layer, :, :, :length], self.values[layer, :, :, :length]
        if isinstance(slots, slice):
            return keys[slots], values[slots]
        return keys.index_select(0, slots), values.index_select(0, slots)

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy the first positions of one slot to another."""
        for tensor in (self.keys, self.values):
            tensor[:, target, :, :count] = tensor[:, source, :, :count]

    def clear(self, slot: int, start: int) -> None:
        """Zero a slot from a position on, where numbers may not be finite: the mask does not protect from those."""
        self.keys[:, slot, :, start:] = 0
        self.values[:, slot, :, start:] = 0

    def zero(self) -> None:
        for pages in self._pages:
            pages.madvise(mmap.MADV_DONTNEED)  # gives them back: they are zeros when they are read again
        if not self._pages:
            self.keys.zero_()
            self.values.zero_()

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        if device.type != "cpu" or sys.platform != "linux":
            return torch.zeros(shape, dtype=dtype, device=device)
        size = math.prod(shape) * dtype.itemsize
        try:
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise ConfigError(
                f"engine.params: keys and values of {shape[1]} slots of {self.length} tokens are {2 * size / 1e9:.1f} "
                "GB, which the system does not give; lower engine.params.slots or engine.params.max_tokens"
            ) from error
        with contextlib.suppress(OSError):  # kernels without huge pages do not know the advice
            pages.madvise(mmap.MADV_NOHUGEPAGE)  # a huge page would be memory for thousands of positions
        self._pages.append(pages)
        return torch.frombuffer(pages, dtype=dtype).view(shape)
