"""FSDP2: every rank keeps 1/N of each parameter, its gradient and its optimiser state, and gathers a block to use it.

With R replicas (HSDP) the R * N ranks are R groups of N neighbours, each of which has the complete weights. Blocks are
gathered, and gradients added up and cut, within a replica; once an optimiser step the shards' gradients are added up
over replicas, which then make the same update. So only these sums cross the network if each replica is on one node.

Gradients are added up over all ranks, not averaged as FSDP does by itself: the loss is normalised by counts of the
complete optimiser step, so a rank's loss is its part of a sum.
(https://docs.pytorch.org/docs/main/distributed.fsdp.fully_shard.html)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from ramet.models.weight_files import WeightFiles
from ramet.policy.distributed.ranks import replica_groups


def shard(
    root: nn.Module,
    blocks: Sequence[nn.Module],
    device: torch.device,
    *,
    master: torch.dtype | None = None,
    compute: torch.dtype | None = None,
    offload: bool = False,
    replicas: int = 1,
) -> None:
    """Shard `root` over the ranks of each replica, block by block, in place; every rank has the same values before.

    `master` is the type of the kept weights (None: as they are), `compute` the one that they are gathered in; gradients
    are always added up in float32. Blocks are moved to `device` one at a time, so no device ever has the complete model
    in `master`. `offload` keeps the shards in host memory (GPUs only).
    """
    mesh = mesh_of_ranks(device, replicas)
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


def mesh_of_ranks(device: torch.device, replicas: int) -> DeviceMesh:
    """All ranks in one dimension, or by replica and shard."""
    size = dist.get_world_size()
    if replicas == 1:
        return init_device_mesh(device.type, (size,))
    ranks = torch.arange(size).view(replicas, -1)
    groups = list(replica_groups(replicas))  # torch's own would wait longer than `join_ranks` may
    return DeviceMesh.from_group(groups, device.type, ranks, mesh_dim_names=("replicate", "shard"))


def add_up_over_replicas(root: nn.Module, add_up: bool) -> None:
    """Whether the next backward passes add gradients up over replicas, with what those before it have left."""
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_requires_all_reduce(add_up, recurse=False)


def read_shards(
    root: nn.Module, model: nn.Module, files: WeightFiles, device: torch.device, dtype: torch.dtype
) -> None:
    """Give the parameters of `model` that are on the meta device memory on `device`, and this rank's part of the files.

    `root` is the sharded module. Values pass through `dtype`, the first type of a model that is loaded unsharded. No
    rank ever has more than one tensor's part in addition to the shards. Parameters on other devices stay as they are.
    """
    empty = {name for name, parameter in model.named_parameters() if parameter.is_meta}

    def allocated(tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor

    root._apply(allocated)  # type: ignore[no-untyped-call]
    targets = {file_name(name): parameter for name, parameter in model.named_parameters() if name in empty}
    parts = {name: _own_rows(parameter) for name, parameter in targets.items()}
    with torch.no_grad():
        for name, rows in files.rows({name: part for name, part in parts.items() if part[0] < part[1]}):
            parameter = targets[name]
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            local.copy_(rows.to(dtype))


def file_name(name: str) -> str:
    """The name in the model's files of a parameter to which an adapter may belong (`lora`)."""
    return name.replace(".base_layer.", ".")


def _own_rows(parameter: Tensor) -> tuple[int, int]:
    """This rank's rows of the full parameter, `start` to `end`."""
    if not isinstance(parameter, DTensor):
        return 0, len(parameter)
    start, end = 0, len(parameter)
    for axis, placement in enumerate(parameter.placements):
        if placement.is_shard(0):  # FSDP cuts as `torch.chunk` does: all parts but the last are equally long
            each = -(-(end - start) // parameter.device_mesh.size(axis))
            first = start + each * parameter.device_mesh.get_local_rank(axis)
            start, end = min(first, end), min(first + each, end)
    return start, end


def reshard(root: nn.Module) -> None:
    """Free the gathered weights. FSDP keeps the root's own weights after a forward pass, for a backward pass that may
    follow, and the weights of a block in which a pass ended by an error.
    """
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor that is sharded over a replica's ranks, which must all call this; without a gradient."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    placed: Tensor = tensor.detach().to(tensor.device_mesh.device_type)  # shards may be offloaded to host memory
    return placed.full_tensor() if isinstance(placed, DTensor) else placed


def _convert(module: nn.Module, dtype: torch.dtype) -> None:
    """Parameters that are sharded already have their type; buffers, such as rotary frequencies, keep their type."""
    for parameter in module.parameters():
        if parameter.requires_grad and not isinstance(parameter, DTensor):
            parameter.data = parameter.data.to(dtype)
