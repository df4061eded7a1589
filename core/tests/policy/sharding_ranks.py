"""Tasks for the ranks of `test_sharding.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ramet.policy.batching.rows import Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.distributed.ranks import replica_groups
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import PolicySpec


def local(tensor: Tensor) -> Tensor:
    found: Tensor = tensor.to_local()  # type: ignore[operator]
    return found


def train_replicas(spec: PolicySpec, rows: list[Row], advantages: Tensor, steps: Sequence[int]) -> Any:
    """Metrics of every step, whole weights on the first rank, the hash of this rank's shards, the bytes that it held.

    The other replicas take no part in gathering the weights.
    """
    worker = PolicyRank(spec, rank=dist.get_rank(), world_size=dist.get_world_size())
    held: dict[str, int] = {}

    def look(optimizer: torch.optim.Optimizer, *_: object) -> None:
        parameters = list(worker.model.parameters())
        held["weights"] = sum(local(p).nbytes for p in parameters)
        held["gradients"] = sum(local(p.grad).nbytes for p in parameters if p.grad is not None)
        moments = [value for one in optimizer.state.values() for value in one.values() if value.dim()]
        held["optimiser"] = sum(local(value).nbytes for value in moments)

    worker.policy.optimizer.register_step_post_hook(look)
    batch = TrainBatch(rows=rows, ref_logprobs=[row.engine_logprobs for row in rows], kl_coef=0.1)
    batch = batch.with_advantages(advantages)
    metrics = [worker.update(batch, step) for step in steps]
    shards = b"".join(local(p).detach().numpy().tobytes() for p in worker.model.parameters())
    weights: dict[str, Tensor] = {}
    if worker.layout.replica == 0:
        gathered = {name: tensor.clone() for name, tensor in worker.engine_weights()}
        weights = gathered if worker.rank == 0 else {}
    return metrics, weights, hashlib.sha256(shards).hexdigest(), held


def groups_of_this_rank(replicas: int) -> list[list[int]]:
    """Ranks with the same shard, and ranks of the same replica."""
    assert replica_groups(replicas) is replica_groups(replicas)
    return [dist.get_process_group_ranks(group) for group in replica_groups(replicas)]
