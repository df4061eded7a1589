"""New weights for vLLM's workers, through vLLM's native weight transfer: the side of the sender.

The flow is the same for every backend: start, receive as often as there is something to, finish with the version, and
vLLM must then report that version. What differs is what the workers are told to receive. `chunks` speaks the backend of
the module `receive`, host memory, which serves workers on any device of this machine. For vLLM's own backends between
GPUs (`nccl`, `ipc`) vLLM's trainer engine says it, beside the weights (`WeightTransferTrainerFactory` in
`vllm.distributed.weight_transfer`); those have not been run.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest
from vllm.v1.engine.async_llm import AsyncLLM

from ramet.engines.vllm.receive import HostMemoryChunk
from ramet.errors import InfraError

CHUNK_BYTES = 2**28  # a larger tensor is a chunk by itself
ALIGNMENT = 64  # bytes
SHARED = Path("/dev/shm")


@dataclass(slots=True)
class Chunk:
    """Tensors that are sent together, and where each lies, in bytes."""

    weights: list[tuple[str, Tensor]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    size: int = 0

    def add(self, name: str, tensor: Tensor) -> None:
        self.weights.append((name, tensor))
        self.offsets.append(self.size)
        self.size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT


def cut(weights: Sequence[tuple[str, Tensor]], limit: int) -> list[Chunk]:
    """Chunks of at most `limit` bytes, cut between tensors, in their order."""
    chunks: list[Chunk] = []
    for name, tensor in weights:
        if not chunks or chunks[-1].size + tensor.nbytes > limit:
            chunks.append(Chunk())
        chunks[-1].add(name, tensor)
    return chunks


def chunks(weights: Sequence[tuple[str, Tensor]]) -> Generator[dict[str, Any], None, None]:
    """What workers are told, one chunk after the other: each stands in shared memory until the next is asked for."""
    found = cut(weights, CHUNK_BYTES)
    with _segment(max(chunk.size for chunk in found)) as segment:
        for chunk in found:
            yield asdict(_write(chunk, segment))


async def receive(llm: AsyncLLM, infos: Iterable[Mapping[str, Any]], version: int) -> None:
    """Let every worker of a paused engine receive. Raises `InfraError` if vLLM then reports another version."""
    await llm.start_weight_update()
    for info in infos:
        await llm.update_weights(WeightTransferUpdateRequest(update_info=dict(info)))
    await llm.finish_weight_update(weight_version=str(version))
    reported = await llm.get_weight_version()
    if reported != str(version):
        raise InfraError(f"vLLM reports weight version {reported!r} behind an update to {version}")


@contextmanager
def _segment(size: int) -> Iterator[SharedMemory]:
    """Shared memory, gone afterwards, and when this process is killed."""
    free = shutil.disk_usage(SHARED).free if SHARED.is_dir() else size
    if free < size:  # writing beyond it would kill the process
        raise InfraError(
            f"sending weights to vLLM's workers needs {size:,} bytes of shared memory, and {SHARED} has {free:,} left; "
            "enlarge it (in a container: --shm-size)"
        )
    segment = SharedMemory(create=True, size=size)
    try:
        yield segment
    finally:
        segment.close()
        segment.unlink()


def _write(chunk: Chunk, segment: SharedMemory) -> HostMemoryChunk:
    for (_, tensor), offset in zip(chunk.weights, chunk.offsets, strict=True):
        place = torch.frombuffer(segment.buf, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
        place.view(tensor.shape).copy_(tensor)
    return HostMemoryChunk(
        segment=segment.name,
        names=[name for name, _ in chunk.weights],
        dtypes=[str(tensor.dtype).removeprefix("torch.") for _, tensor in chunk.weights],
        shapes=[list(tensor.shape) for _, tensor in chunk.weights],
        offsets=chunk.offsets,
    )
