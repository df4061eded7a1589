"""Tasks for the ranks of `test_critic.py`."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from ramet.policy.batching.rows import Floats, Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import CriticSpec, PolicySpec


def train_critic(
    spec: PolicySpec, critic: CriticSpec, rows: list[Row], returns: Tensor, folder: Path
) -> tuple[dict[str, float], list[Floats]]:
    """Three steps; the metrics of the last, the values after it, a checkpoint in `folder`."""
    worker = PolicyRank(spec, critic, rank=dist.get_rank(), world_size=dist.get_world_size())
    metrics: dict[str, float] = {}
    for step in (1, 2, 3):
        values = [worker.values(rows)]
        dist.broadcast_object_list(values)  # as the driver gives every rank the same
        metrics = worker.update_critic(
            TrainBatch(rows=rows, values=values[0]).with_advantages(torch.zeros_like(returns), returns=returns), step
        )
    worker.stage()
    worker.write_staged(folder)
    return metrics, worker.values(rows)
