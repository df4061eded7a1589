"""FSDP2: every rank keeps 1/N of each parameter, its gradient and its optimiser state, and gathers a block to use it.

Gradients are added up over ranks, not averaged as FSDP does by itself: the loss is normalised by counts of the whole
optimiser step, so a rank's loss is its part of a sum. (https://docs.pytorch.org/docs/main/distributed.fsdp.fully_shard.html)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor


def shard(
    root: nn.Module,
    blocks: Sequence[nn.Module],
    device: torch.device,
    *,
    master: torch.dtype | None = None,
    compute: torch.dtype | None = None,
    offload: bool = False,
) -> None:
    """Shard `root` over all ranks, block by block, in place; every rank holds the same values before.

    `master` is the type of the kept weights (None: as they are), `compute` the one that they are gathered in; gradients
    are always added up in float32. Blocks are moved to `device` one at a time, so no device ever holds the whole model
    in `master`. `offload` keeps the shards in host memory (GPUs only).
    """
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    offload_policy: OffloadPolicy = CPUOffloadPolicy() if offload else OffloadPolicy()
    for module in [*blocks, root]:
        if master is not None:
            _convert(module, master)
        fully_shard(module, mesh=mesh, mp_policy=precision, offload_policy=offload_policy)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it adds


def reshard(root: nn.Module) -> None:
    """Free what the root gathered: FSDP keeps it after a forward pass, for a backward pass that may follow."""
    if isinstance(root, FSDPModule):
        root.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole of a tensor that is sharded over ranks, which must all call this; without a gradient."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    placed: Tensor = tensor.detach().to(tensor.device_mesh.device_type)  # shards may be offloaded to host memory
    return placed.full_tensor() if isinstance(placed, DTensor) else placed


def _convert(module: nn.Module, dtype: torch.dtype) -> None:
    """Parameters that are sharded already have their type; buffers, such as rotary frequencies, keep theirs."""
    for parameter in module.parameters():
        if parameter.requires_grad and not isinstance(parameter, DTensor):
            parameter.data = parameter.data.to(dtype)
