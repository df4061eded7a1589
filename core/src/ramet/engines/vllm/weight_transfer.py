"""New weights for vLLM's workers, through vLLM's native weight transfer: both sides of a backend in host memory.

The flow is the same for every backend: start, receive as often as there is something to, finish with the version, and
vLLM must then report that version. What differs is what the workers are told to receive. In the backend of this module
the sender writes a chunk of weights into shared memory and says where each tensor lies (`chunks`), and every worker
copies it from there to its own device (`HostMemoryReceiver`): it needs no communicator, and works on a CPU, where
vLLM's own backends do not. For those between GPUs (`nccl`, `ipc`) vLLM's trainer engine sends, beside the weights, what
the workers are told (`WeightTransferTrainerFactory` in `vllm.distributed.weight_transfer`); those have not been run.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
    WeightTransferUpdateRequest,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from ramet.errors import InfraError

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM  # the workers do not need it

BACKEND = "ramet_host"  # `VllmEngineConfig.transfer=host`
CHUNK_BYTES = 2**28  # a larger tensor is a chunk by itself
ALIGNMENT = 64  # bytes
SHARED = Path("/dev/shm")


@dataclass
class HostMemoryInit(WeightTransferInitInfo):  # type: ignore[misc, unused-ignore]
    """Nothing has to be agreed on."""


@dataclass
class HostMemoryChunk(WeightTransferUpdateInfo):  # type: ignore[misc, unused-ignore]
    """One chunk of weights, as the workers are told of it. The lists have one entry per tensor."""

    segment: str  # name of the shared memory
    names: list[str]
    dtypes: list[str]  # as in `torch.float32`
    shapes: list[list[int]]
    offsets: list[int]  # bytes


@dataclass(slots=True)
class WeightChunk:
    """Tensors that are sent together, and where each will lie, in bytes."""

    weights: list[tuple[str, Tensor]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    size: int = 0

    def add(self, name: str, tensor: Tensor) -> None:
        self.weights.append((name, tensor))
        self.offsets.append(self.size)
        self.size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT


def chunks(weights: Sequence[tuple[str, Tensor]]) -> Generator[dict[str, Any], None, None]:
    """What workers are told, one chunk after the other: each is in shared memory until the next is asked for."""
    found = _split(weights, CHUNK_BYTES)
    with _segment(max(chunk.size for chunk in found)) as segment:
        for chunk in found:
            yield asdict(_write(chunk, segment))


async def update_workers(llm: AsyncLLM, infos: Iterable[Mapping[str, Any]], version: int) -> None:
    """Let every worker of a paused engine receive. Raises `InfraError` if vLLM then reports another version."""
    await llm.start_weight_update()
    for info in infos:
        await llm.update_weights(WeightTransferUpdateRequest(update_info=dict(info)))
    await llm.finish_weight_update(weight_version=str(version))
    reported = await llm.get_weight_version()
    if reported != str(version):
        raise InfraError(f"vLLM reports weight version {reported!r} after an update to {version}")


class HostMemoryReceiver(WeightTransferEngine[HostMemoryInit, HostMemoryChunk]):  # type: ignore[misc, unused-ignore]
    """In a worker: takes chunks of Hugging Face weights, in any order and split anywhere between tensors."""

    init_info_cls = HostMemoryInit
    update_info_cls = HostMemoryChunk

    def init_transfer_engine(self, init_info: HostMemoryInit) -> None:
        pass

    def start_weight_update(self) -> None:
        # vLLM packs weights on loading: only a reload by layers finds the way back to its parameters.
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Copied when it returns: nothing is queued, and on a CPU there is no accelerator to wait for."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: HostMemoryChunk) -> None:
        model: Any = self.model  # torch does not know the methods of vLLM's models
        model.load_weights(_copies(update_info, self.device))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)  # type: ignore[no-untyped-call, unused-ignore]

    def shutdown(self) -> None:
        pass


def _split(weights: Sequence[tuple[str, Tensor]], limit: int) -> list[WeightChunk]:
    """Chunks of at most `limit` bytes, split between tensors, in their order."""
    found: list[WeightChunk] = []
    for name, tensor in weights:
        if not found or found[-1].size + tensor.nbytes > limit:
            found.append(WeightChunk())
        found[-1].add(name, tensor)
    return found


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


def _write(chunk: WeightChunk, segment: SharedMemory) -> HostMemoryChunk:
    for (_, tensor), offset in zip(chunk.weights, chunk.offsets, strict=True):
        target = torch.frombuffer(segment.buf, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
        target.view(tensor.shape).copy_(tensor)
    return HostMemoryChunk(
        segment=segment.name,
        names=[name for name, _ in chunk.weights],
        dtypes=[str(tensor.dtype).removeprefix("torch.") for _, tensor in chunk.weights],
        shapes=[list(tensor.shape) for _, tensor in chunk.weights],
        offsets=chunk.offsets,
    )


def _copies(chunk: HostMemoryChunk, device: torch.device) -> list[tuple[str, Tensor]]:
    """Copies, since a layer whose other weights come with the next chunk is loaded then, from memory written anew."""
    segment = SharedMemory(name=chunk.segment)
    try:
        return [
            (name, _copy(segment, getattr(torch, dtype), shape, offset, device))
            for name, dtype, shape, offset in zip(chunk.names, chunk.dtypes, chunk.shapes, chunk.offsets, strict=True)
        ]
    finally:
        segment.close()


def _copy(segment: SharedMemory, dtype: torch.dtype, shape: list[int], offset: int, device: torch.device) -> Tensor:
    count = torch.Size(shape).numel()
    view = torch.frombuffer(segment.buf, dtype=dtype, count=count, offset=offset)
    return view.view(shape).to(device, copy=True)
