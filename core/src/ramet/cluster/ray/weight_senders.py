"""A policy rank's side of weights that go to the engines without the object store.

All ranks gather the same tensors together, in the same order and chunks. Through memory that sender and engine share,
each rank whose device an engine uses writes chunks by itself (`stream`); over the network the first rank broadcasts
(`Broadcaster`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch

from ramet.engines.weight_chunks import CHUNK_BYTES, Named, grouped, join_gloo, laid_out, pack


def stream(weights: Iterable[Named], *, writes: bool, device: torch.device, largest: int) -> Iterator[dict[str, Any]]:
    """Yield what this rank sends to the workers of its engine, chunk by chunk; nothing from a rank that writes none.

    A chunk may be read until the next is asked for. `largest`: bytes of the largest tensor.
    """
    if device.type == "cuda":
        limit = max(CHUNK_BYTES, largest)
        yield from _exported(weights, device, limit) if writes else unwritten(weights, limit)
    elif not writes:
        for _ in grouped(weights, CHUNK_BYTES):
            yield {}
    else:
        from ramet.engines.vllm.weight_transfer import chunks  # vLLM is an extra

        yield from chunks(weights, CHUNK_BYTES)


class Broadcaster:
    """The first rank's connection to the workers of all engines: NCCL, by vLLM's own classes, or gloo on a CPU."""

    def __init__(self, options: Mapping[str, Any], device: torch.device) -> None:
        """Returns when all have joined. `options`: for `weight_transfer.TransferSource`."""
        self._limit = int(options["packed_buffer_size_bytes"])
        self._group: Any
        if device.type == "cuda":
            from vllm.distributed.weight_transfer.nccl_common import trainer_init

            self._group = trainer_init(dict(options))
            self._send = self._send_by_nccl
        else:
            self._group = join_gloo(
                options["master_address"],
                options["master_port"],
                rank=0,
                size=options["world_size"],
                timeout_s=options["timeout_s"],
            )
            self._send = self._send_by_gloo

    def send(self, weights: Iterable[Named]) -> None:
        """Broadcast to all at once; the workers must wait for them already."""
        self._send(iter(weights))

    def _send_by_nccl(self, weights: Iterator[Named]) -> None:
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

        packed_nccl_broadcast_producer(
            iterator=weights,
            group=self._group,
            src=0,
            post_iter_func=lambda item: item[1],
            buffer_size_bytes=self._limit,
        )

    def _send_by_gloo(self, weights: Iterator[Named]) -> None:
        for group in grouped(weights, self._limit):
            pieces, size = laid_out(group)
            memory = torch.empty(size, dtype=torch.uint8)
            pack(group, pieces, memory)
            self._group.broadcast(memory, root=0).wait()


def unwritten(weights: Iterable[Named], limit: int) -> Iterator[dict[str, Any]]:
    """Yield an empty entry for each chunk of vLLM's `packed_ipc_producer`.

    All ranks must gather up to the same tensor, or one that writes waits for ever for one whose engine was lost.
    """
    size = 0
    for _, tensor in weights:
        if size and size + tensor.nbytes > limit:
            yield {}
            size = 0
        size += tensor.nbytes
    if size:
        yield {}


def _exported(weights: Iterable[Named], device: torch.device, limit: int) -> Generator[dict[str, Any], None, None]:
    """Yield chunks made by vLLM's own classes, through one buffer on this GPU that the engine's worker there maps."""
    from vllm.distributed.weight_transfer.packed_tensor import packed_ipc_producer

    from ramet.engines.vllm.weight_transfer import plain_handle

    chunks = packed_ipc_producer(
        iterator=iter(weights),
        gpu_uuid=str(torch.cuda.get_device_properties(device).uuid),
        post_iter_func=lambda item: item[1],
        buffer_size_bytes=limit,
    )
    with _fixed_segments():
        chunk = next(chunks, None)  # makes the buffer
    while chunk is not None:
        description = asdict(chunk)
        handles = {gpu: plain_handle(handle) for gpu, handle in description.pop("ipc_handle").items()}
        yield {"by": "ipc", "told": description | {"ipc_handles": handles}}
        chunk = next(chunks, None)
    torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _fixed_segments() -> Iterator[None]:
    """Memory of segments that can grow is exported by a system call that containers forbid."""
    before = torch._C._accelerator_getAllocatorSettings()
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    try:
        yield
    finally:
        torch._C._accelerator_setAllocatorSettings(before)
