"""New weights for vLLM's workers, through vLLM's native weight transfer: the receivers, and sending by shared memory.

The flow is the same wherever weights come from: start, receive as often as there is something to, finish with the
version, and vLLM must then report that version. What differs is what the workers receive:

- `host`: a chunk is in shared memory of this machine; it needs no communicator, and works on a CPU, where vLLM's own
  receivers do not;
- `ipc`: a chunk is in memory of the worker's own GPU, which the trainer's process on it has exported (vLLM's receiver);
- `nccl`: chunks are broadcast by the trainer's first rank (vLLM's receiver), on a CPU by gloo (Ramet's).

A worker takes chunks of the first two from the start; it joins a broadcast on `connect`. So one which missed a
broadcast is sent the host's.
"""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
    WeightTransferUpdateRequest,
)
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from ramet.engines import weight_chunks
from ramet.engines.weight_chunks import Named, Piece, described, grouped, join_gloo, laid_out, pack, unpack
from ramet.errors import InfraError

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM  # the workers do not need it

BACKEND = "ramet"  # name of `WeightReceiver` in vLLM
SHARED = Path("/dev/shm")


@dataclass
class TransferSource(WeightTransferInitInfo):  # type: ignore[misc, unused-ignore]
    """The broadcast that weights will come from."""

    by: str  # nccl or gloo
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Arriving(WeightTransferUpdateInfo):  # type: ignore[misc, unused-ignore]
    """A description of what the workers receive, as `by` understands it."""

    by: str
    told: dict[str, Any]


class Receiver(Protocol):
    """One way for weights to come, in a worker."""

    def load(self, told: dict[str, Any]) -> None:
        """Receive the described tensors and load them into the worker's model; loaded when it returns."""
        ...

    def finish(self) -> None:
        """The last chunk of an update was loaded."""
        ...


class WeightReceiver(WeightTransferEngine[TransferSource, Arriving]):  # type: ignore[misc, unused-ignore]
    """Receiver in a worker: takes chunks of Hugging Face weights, in any order and split anywhere between tensors."""

    init_info_cls = TransferSource
    update_info_cls = Arriving

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._receivers: dict[str, Receiver] = {
            "host": _FromSharedMemory(self.model, self.device),
            "ipc": _FromVllm(IPCWeightTransferEngine(*arguments), {"packed": True}),  # as `weight_senders` packs
        }

    def init_transfer_engine(self, init_info: TransferSource) -> None:
        self._receivers[init_info.by] = self._receiver(init_info)

    def start_weight_update(self) -> None:
        # vLLM packs weights on loading: only a reload by layers finds the way back to its parameters.
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Arriving) -> None:
        self._receivers[update_info.by].load(update_info.told)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)  # type: ignore[no-untyped-call, unused-ignore]
        for receiver in self._receivers.values():
            receiver.finish()

    def shutdown(self) -> None:
        self._receivers.clear()

    def _receiver(self, source: TransferSource) -> Receiver:
        if source.by == "gloo":
            return _FromGloo(self.model, self.device, self.parallel_config.rank, source.options)
        about = (self.config, self.vllm_config, self.device, self.model)
        return _FromVllm(NCCLWeightTransferEngine(*about), source.options)


class _FromSharedMemory:
    def __init__(self, model: Any, device: torch.device) -> None:
        self._model = model
        self._device = device

    def load(self, told: dict[str, Any]) -> None:
        self._model.load_weights(_copies(told, self._device))

    def finish(self) -> None:
        """Do nothing: no memory is kept."""


class _FromGloo:
    def __init__(self, model: Any, device: torch.device, rank: int, options: dict[str, Any]) -> None:
        self._model = model
        self._device = device
        self._group = join_gloo(
            options["master_address"],
            options["master_port"],
            rank=options["rank_offset"] + rank,
            size=options["world_size"],
            timeout_s=options["timeout_s"],
        )

    def load(self, told: dict[str, Any]) -> None:
        shapes = zip(told["names"], told["dtype_names"], told["shapes"], strict=True)
        for group in grouped(described(shapes), told["limit"]):
            pieces, size = laid_out(group)
            memory = torch.empty(size, dtype=torch.uint8)
            self._group.broadcast(memory, root=0).wait()
            self._model.load_weights([(name, tensor.to(self._device)) for name, tensor in unpack(pieces, memory)])

    def finish(self) -> None:
        """Do nothing: no memory is kept."""


class _FromVllm:
    """One of vLLM's own receivers. Between processes only plain values travel."""

    def __init__(self, engine: Any, options: dict[str, Any]) -> None:
        self._engine = engine
        engine.init_transfer_engine(engine.parse_init_info(options))

    def load(self, told: dict[str, Any]) -> None:
        if handles := told.get("ipc_handles"):
            told = told | {"ipc_handles": {gpu: rebuilt_handle(values) for gpu, values in handles.items()}}
        self._engine.update_weights(told)

    def finish(self) -> None:
        if isinstance(self._engine, IPCWeightTransferEngine):
            self._engine.shutdown()  # lets the trainer have its buffer back


def plain_handle(handle: tuple[Any, ...]) -> list[Any]:
    """The handle of a flat buffer of bytes on a GPU from torch's `reduce_tensor`, without the types that it names."""
    _, size, stride, offset, _, _, *rest = handle
    return [list(size), list(stride), offset, *rest]


def rebuilt_handle(values: list[Any]) -> tuple[Any, ...]:
    """The inverse of `plain_handle`."""
    size, stride, offset, *rest = values
    return torch.Tensor, torch.Size(size), tuple(stride), offset, torch.storage.TypedStorage, torch.uint8, *rest


def chunks(weights: Iterable[Named], limit: int | None = None) -> Generator[dict[str, Any], None, None]:
    """Yield descriptions for workers of this machine, chunk by chunk: each is in shared memory until the next is
    asked for."""
    for group in grouped(weights, limit or weight_chunks.CHUNK_BYTES):
        pieces, size = laid_out(group)
        with _segment(size) as segment:
            memory = torch.frombuffer(segment.buf, dtype=torch.uint8)
            pack(group, pieces, memory)
            del memory  # or the segment could not be closed
            yield asdict(Arriving(by="host", told={"segment": segment.name, "pieces": [asdict(p) for p in pieces]}))


async def receive_chunk(llm: AsyncLLM, info: Mapping[str, Any]) -> None:
    """Let every worker receive. `info` is an `Arriving`."""
    await llm.update_weights(WeightTransferUpdateRequest(update_info=dict(info)))


async def finish_update(llm: AsyncLLM, version: int) -> None:
    """Raises `InfraError` if vLLM then reports another version."""
    await llm.finish_weight_update(weight_version=str(version))
    reported = await llm.get_weight_version()
    if reported != str(version):
        raise InfraError(f"vLLM reports weight version {reported!r} after an update to {version}")


@contextmanager
def _segment(size: int) -> Iterator[SharedMemory]:
    """Shared memory, gone afterwards, and when this process is killed."""
    free = shutil.disk_usage(SHARED).free if SHARED.is_dir() else size
    if free < size:  # writing beyond it would kill the process
        raise InfraError(
            f"sending weights to vLLM's workers needs {size:,} bytes of shared memory, and {SHARED} has {free:,} left; "
            "enlarge it (in a container: --shm-size)"
        )
    segment = SharedMemory(create=True, size=max(size, 1))
    try:
        yield segment
    finally:
        segment.close()
        segment.unlink()


def _copies(told: dict[str, Any], device: torch.device) -> list[Named]:
    """Return copies: a layer may be loaded with the next chunk, when this memory is already written again."""
    pieces = [Piece(**piece | {"shape": tuple(piece["shape"])}) for piece in told["pieces"]]
    # No `SharedMemory`: before Python 3.13 a process that opened one deletes it as it ends, even if killed during
    # an update (python/cpython#82300), under the hands of the sender and of the other engines.
    with (SHARED / told["segment"]).open("r+b") as file, mmap.mmap(file.fileno(), 0) as segment:
        memory = torch.frombuffer(segment, dtype=torch.uint8)
        try:
            return [(name, tensor.to(device, copy=True)) for name, tensor in unpack(pieces, memory)]
        finally:
            del memory  # or the segment could not be closed
