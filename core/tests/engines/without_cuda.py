"""Stand-ins for the primitives of CUDA and NCCL, so that vLLM's own transfers of weights run without a GPU.

Memory that a process exports is a file of shared memory, and its handle the file's path; NCCL's broadcast goes through
the store at which its group met. Everything above them is the real one. vLLM's workers import this module with their
extension, `Extension`, and are on "GPUs" that are named by their ranks.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from tempfile import mkstemp
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions
from vllm.distributed.device_communicators import pynccl
from vllm.distributed.parallel_state import get_tp_group
from vllm.distributed.weight_transfer import packed_tensor

from ramet.engines.vllm.worker_extension import WorkerExtension

SHARED = Path("/dev/shm")
PREFIX = "ramet-ipc-"
_empty = torch.empty
_handles: dict[int, str] = {}  # of exported memory, by address


class Extension(WorkerExtension):
    """In vLLM's workers."""


class Communicator:
    """In the place of vLLM's `PyNcclCommunicator`: `group` is its own, a `StatelessProcessGroup`."""

    def __init__(self, group: Any, device: object) -> None:
        self.group = group

    def broadcast(self, tensor: Tensor, src: int, stream: object = None) -> None:
        tensor.copy_(self.group.broadcast(tensor, src))

    def destroy(self) -> None:
        """Nothing is kept."""


def stand_in(patch: Callable[[Any, str, Any], None]) -> None:
    """Replace the primitives in this process, each by `patch(owner, name, replacement)`; a sender replaces
    `torch.empty` by `empty`, too.
    """
    stream = SimpleNamespace(synchronize=lambda: None)
    patch(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"GPU-{_number(device)}"))
    patch(torch.cuda, "current_stream", lambda: stream)
    patch(torch.cuda, "stream", lambda _: nullcontext())
    patch(torch.cuda, "ipc_collect", lambda: None)
    patch(torch.accelerator, "current_device_index", lambda: 0)
    patch(packed_tensor, "_get_streams", lambda device, count: (stream,) * count)
    patch(packed_tensor, "reduce_tensor", _exported)
    patch(reductions, "rebuild_cuda_tensor", _mapped)
    patch(pynccl, "PyNcclCommunicator", Communicator)


def _number(device: torch.device | None) -> int:
    """Of a "GPU". vLLM's workers ask for None: theirs is the CPU, which has no number."""
    if device is not None and device.index is not None:
        return device.index
    return get_tp_group().rank_in_group


def empty(*shape: Any, **options: Any) -> Tensor:
    if options.get("device") != "cuda":
        return _empty(*shape, **options)
    (size,) = shape
    handle, path = mkstemp(prefix=PREFIX, dir=SHARED)
    os.truncate(handle, size)
    os.close(handle)
    memory = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
    _handles[memory.data_ptr()] = path
    return memory


def _exported(memory: Tensor) -> tuple[object, tuple[Any, ...]]:
    """As torch's `reduce_tensor` of memory on a GPU."""
    path, size = _handles[memory.data_ptr()], memory.numel()
    about = type(memory), memory.size(), memory.stride(), 0, torch.storage.TypedStorage, memory.dtype
    return _mapped, (*about, 0, path.encode(), size, 0, False, b"counter", 0, b"event", True)


def _mapped(
    cls: type, shape: torch.Size, stride: tuple[int, ...], offset: int, storage: type, dtype: torch.dtype,
    device: int | None, handle: bytes, size: int, start: int, grad: bool, counter: bytes, place: int, event: bytes,
    waits: bool,
) -> Tensor:  # fmt: skip
    """As torch's `rebuild_cuda_tensor`, of which these are the arguments."""
    assert (cls, storage, dtype) == (Tensor, torch.storage.TypedStorage, torch.uint8)
    assert isinstance(handle, bytes) and isinstance(event, bytes) and isinstance(counter, bytes)
    memory = torch.from_file(handle.decode(), shared=True, size=size, dtype=dtype)
    return torch.as_strided(memory, shape, stride, offset)


if multiprocessing.parent_process() is not None:  # a worker of vLLM
    stand_in(setattr)
