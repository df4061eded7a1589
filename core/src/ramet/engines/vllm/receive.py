"""Weights through host memory, the side of vLLM's workers: a backend of its native weight transfer.

The sender (`transfer`) writes a chunk of weights into shared memory and says where each tensor lies; every worker
copies it from there to its own device. It needs no communicator, and works on a CPU, where vLLM's own backends do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "ramet_host"  # `VllmEngineConfig.transfer=host`


@dataclass
class HostMemoryInit(WeightTransferInitInfo):  # type: ignore[misc, unused-ignore]
    """Nothing has to be agreed on."""


@dataclass
class HostMemoryChunk(WeightTransferUpdateInfo):  # type: ignore[misc, unused-ignore]
    """One chunk of weights. The lists have one entry per tensor."""

    segment: str  # name of the shared memory
    names: list[str]
    dtypes: list[str]  # as in `torch.float32`
    shapes: list[list[int]]
    offsets: list[int]  # bytes


class HostMemoryReceiver(WeightTransferEngine[HostMemoryInit, HostMemoryChunk]):  # type: ignore[misc, unused-ignore]
    """Takes chunks of Hugging Face weights, in any order and cut anywhere between tensors."""

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
