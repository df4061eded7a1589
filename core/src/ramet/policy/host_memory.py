"""Host memory that takes copies of a rank's tensors: allocated once, used again, pinned where they come from a GPU.

A GPU copies without a stop for every tensor only from and to pinned memory. torch's allocator rounds each pinned block
up to a power of two, so tensors lie one after another in chunks that are one already. (Torch's own `DefaultStager` can
be used once only in torch 2.11: https://github.com/pytorch/pytorch/issues/183413)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

CHUNK = 2**30  # bytes; a larger tensor is a chunk by itself
ALIGNMENT = 64  # bytes, as of torch's own allocations


@dataclass(frozen=True, slots=True)
class Chunks:
    """Layout of tensors: chunk and first byte of each, and the bytes of each chunk."""

    places: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]


def chunks(sizes: Iterable[int]) -> Chunks:
    """Lay out tensors of so many bytes, in order."""
    places: list[tuple[int, int]] = []
    ends: list[int] = []
    for size in sizes:
        if not ends or (ends[-1] and ends[-1] + size > CHUNK):
            ends.append(0)
        places.append((len(ends) - 1, ends[-1]))
        ends[-1] += -(-size // ALIGNMENT) * ALIGNMENT
    return Chunks(tuple(places), tuple(ends))


def pinned_bytes(sizes: Iterable[int]) -> int:
    """The size of pinned blocks of these bytes: torch rounds each up to a power of two."""
    return sum(1 << (size - 1).bit_length() for size in sizes if size)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy from host memory to `device` without waiting for it, as a GPU's copy does from memory that is not pinned."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class HostBuffers:
    """Copies of named tensors in host memory. It is kept as long as this object."""

    def __init__(self, *, pin: bool) -> None:
        self._pin = pin
        self._held: dict[str, Tensor] = {}

    def copies(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies under the same names, complete when this returns; sharded ones are sharded alike.

        They overwrite the copies of these names that were returned before.
        """
        self._allocate({name: tensor for name, tensor in tensors.items() if not self._fits(name, tensor)})
        with torch.no_grad():
            for name, tensor in tensors.items():
                self._held[name].copy_(tensor, non_blocking=self._pin)
        if self._pin:
            for gpu in gpus_of(tensors.values()):  # it need not be the current one: model.device=cuda:1
                torch.cuda.synchronize(gpu)  # once for all tensors
        return {name: self._held[name] for name in tensors}

    def _fits(self, name: str, tensor: Tensor) -> bool:
        held = self._held.get(name)
        return held is not None and held.shape == tensor.shape and held.dtype == tensor.dtype

    def _allocate(self, tensors: Mapping[str, Tensor]) -> None:
        layout = chunks(own_part(tensor).nbytes for tensor in tensors.values())
        memory = [torch.empty(size, dtype=torch.uint8, pin_memory=self._pin) for size in layout.sizes]
        for (name, tensor), (chunk, start) in zip(tensors.items(), layout.places, strict=True):
            self._held[name] = _placed(tensor, memory[chunk][start:])


def gpus_of(tensors: Iterable[Tensor]) -> set[torch.device]:
    """The GPUs with this rank's parts."""
    return {tensor.device for tensor in map(own_part, tensors) if tensor.is_cuda}


def own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that may be sharded, without a gradient."""
    with torch.no_grad():  # so that it is the part itself, no view of it
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _placed(tensor: Tensor, memory: Tensor) -> Tensor:
    """A tensor like this one in host memory, whose own part begins where `memory`, bytes, does."""
    with torch.no_grad():
        host = torch.empty_like(tensor, device="cpu")
        part = host.to_local() if isinstance(host, DTensor) else host
        part.set_(memory[: part.nbytes].view(part.dtype).view(part.shape))  # type: ignore[call-overload]
    return host
