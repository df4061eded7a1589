"""Tasks for the ranks of `test_ranks.py`. Arguments and results are sent between processes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.errors import RametError
from ramet.models.weight_files import WeightFiles
from ramet.policy import models
from ramet.policy.batching.rows import Row
from ramet.policy.batching.shared import groups_of
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.critic import ValueModel
from ramet.policy.distributed.ranks import gather_on_first, sum_over_ranks
from ramet.policy.distributed.sharding import full_tensor
from ramet.policy.logprob_model import LogprobModel
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import PolicySpec
from ramet.types import LossInputs, LossOutput, Need

WEIGHT_ROWS = WeightFiles.rows


@dataclass
class BreaksOnRank:
    """Not a number on one rank while it is broken."""

    rank: int
    broken: bool = True
    needs: frozenset[Need] = frozenset()

    def __call__(self, batch: LossInputs) -> LossOutput:
        broken = self.broken and dist.get_rank() == self.rank
        return LossOutput(per_token=-batch.logprobs * batch.advantages * (float("nan") if broken else 1.0))


@dataclass
class WholeSequences:
    """Row i, whose advantages are all i + 1, must come with `lengths[i]` tokens, and each trained one scored."""

    lengths: list[int]
    seen: list[int] = field(default_factory=list)
    needs: frozenset[Need] = frozenset()

    def __call__(self, batch: LossInputs) -> LossOutput:
        for sequence in batch.sequence_ids.unique():
            own = batch.sequence_ids == sequence
            (name,) = batch.advantages[own & batch.mask].unique().tolist()
            assert int(own.sum()) == self.lengths[round(name) - 1]
            assert (batch.logprobs[own & batch.mask] < 0).all()
            self.seen.append(round(name) - 1)
        return LossOutput(per_token=-batch.logprobs * batch.advantages)


@dataclass
class NeedsEveryRow(PpoClip):
    """Says that it might use entropies, so that rows without advantages are computed too."""

    config: PpoClipConfig = field(default_factory=PpoClipConfig)
    needs: frozenset[Need] = frozenset({Need.ENTROPY})


def worker_of(spec: PolicySpec) -> PolicyRank:
    return PolicyRank(spec, rank=dist.get_rank(), world_size=dist.get_world_size())


def with_reference(rows: list[Row], advantages: Tensor) -> TrainBatch:
    batch = TrainBatch(rows=rows, ref_logprobs=[row.engine_logprobs for row in rows], kl_coef=0.1)
    return batch.with_advantages(advantages)


def whole_weights(worker: PolicyRank) -> dict[str, Tensor]:
    found = {name: tensor.clone() for name, tensor in worker.weights()}
    return found if worker.rank == 0 else {}


def exchange(values: Sequence[float]) -> tuple[float, list[float] | None]:
    own = values[dist.get_rank()]
    return sum_over_ranks(own), gather_on_first(own)


def score(spec: PolicySpec, rows: list[Row]) -> Any:
    worker = worker_of(spec)
    reference = worker.reference_logprobs(rows) if spec.needs_reference else None
    return worker.logprobs(rows), worker.logprobs_and_entropies(rows), reference


def rescore(spec: PolicySpec, rows: list[Row]) -> Any:
    return worker_of(spec).rescore(rows)


def train(spec: PolicySpec, rows: list[Row], advantages: Tensor, steps: Sequence[int]) -> Any:
    """Metrics of every step, the weights after the last, and how much of them this rank holds."""
    worker = worker_of(spec)
    batch = with_reference(rows, advantages)
    metrics = [worker.update(batch, step) for step in steps]
    held = sum(p.to_local().numel() for p in worker.model.parameters())
    return metrics, whole_weights(worker), held


def train_taken(spec: PolicySpec, rows: list[Row], advantages: Tensor) -> Any:
    """As `train`, on a batch that is taken by groups, the last one first."""
    worker = worker_of(spec)
    batch = TrainBatch(rows=rows).with_advantages(advantages)
    worker.take([batch.part(indices) for indices in reversed(groups_of(rows))], 0.1)
    worker.add_reference_logprobs()
    return worker.update_taken(1), whole_weights(worker)


def train_compiled(spec: PolicySpec, rows: list[Row], advantages: Tensor, steps: Sequence[int]) -> Any:
    """Compile graphs of forward and backward passes as for a run, and leave out Inductor's C++, which takes 20 s."""
    torch._dynamo.reset()
    with patch.object(models, "compile_blocks", partial(models.compile_blocks, backend="aot_eager")):
        trained = train(spec, rows, advantages, steps)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    return trained


def whole_sequences(spec: PolicySpec, rows: list[Row], advantages: Tensor) -> list[int]:
    """The rows that the loss of this rank was given, whole."""
    loss = WholeSequences([len(row.response_ids) for row in rows])
    worker_of(replace(spec, policy_loss=loss)).update(TrainBatch(rows=rows).with_advantages(advantages), 1)
    return sorted(loss.seen)


def train_with_every_row(spec: PolicySpec, rows: list[Row], advantages: Tensor, steps: Sequence[int]) -> Any:
    return train(replace(spec, policy_loss=NeedsEveryRow()), rows, advantages, steps)


def break_on(rank: int, spec: PolicySpec, rows: list[Row], advantages: Tensor) -> Any:
    """Trains with a loss that is broken on `rank` in its second step. Metrics and weights after each."""
    loss = BreaksOnRank(rank)
    worker = worker_of(replace(spec, policy_loss=loss))
    out = []
    for step in (1, 2, 3):
        loss.broken = step == 2
        metrics = worker.update(TrainBatch(rows=rows).with_advantages(advantages), step)
        out.append((metrics, whole_weights(worker), worker.policy.bad_steps))
    return out


def diverge(rank: int, spec: PolicySpec, rows: list[Row], advantages: Tensor) -> str:
    worker = worker_of(replace(spec, policy_loss=BreaksOnRank(rank)))
    try:
        worker.update(TrainBatch(rows=rows).with_advantages(advantages), 1)
    except RametError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def save(spec: PolicySpec, rows: list[Row], advantages: Tensor, folder: Path, *, in_thread: bool) -> Any:
    """Two steps, a save, and two more. `in_thread`: the save runs in a thread during the third step."""
    worker = worker_of(spec)
    for step in (1, 2):
        worker.update(TrainBatch(rows=rows).with_advantages(advantages), step)
    torch.manual_seed(100 + worker.rank)
    worker.stage()
    if in_thread:
        thread = Thread(target=worker.write_staged, args=(folder,))
        thread.start()
    else:
        worker.write_staged(folder)
    metrics = [worker.update(TrainBatch(rows=rows).with_advantages(advantages), 3)]
    if in_thread:
        thread.join(60)
    metrics.append(worker.update(TrainBatch(rows=rows).with_advantages(advantages), 4))
    return metrics, whole_weights(worker), torch.rand(1).item()


def save_fails(spec: PolicySpec, folder: Path) -> str:
    worker = worker_of(spec)
    worker.stage()
    try:
        worker.write_staged(folder)
    except RametError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def resume(spec: PolicySpec, rows: list[Row], advantages: Tensor, folder: Path) -> Any:
    worker = worker_of(spec)
    torch.manual_seed(1)
    worker.load(folder)
    metrics = [worker.update(TrainBatch(rows=rows).with_advantages(advantages), step) for step in (3, 4)]
    return metrics, whole_weights(worker), torch.rand(1).item()


def load_fails(spec: PolicySpec, folder: Path) -> str:
    started = time.monotonic()
    try:
        worker_of(spec).load(folder)
    except RametError as error:
        return f"{type(error).__name__}: {error} ({'at once' if time.monotonic() - started < 20 else 'late'})"
    return "nothing was raised"


def export(spec: PolicySpec, rows: list[Row], advantages: Tensor, folder: Path) -> dict[str, Tensor]:
    worker = worker_of(spec)
    worker.update(TrainBatch(rows=rows).with_advantages(advantages), 1)
    worker.export(folder)
    return whole_weights(worker)


def construct(spec: PolicySpec) -> str:
    try:
        worker_of(spec)
    except RametError as error:
        return str(error)
    return "nothing was raised"


def read_parts(spec: PolicySpec, *, critic: bool = False) -> tuple[dict[str, Tensor], int]:
    """The whole weights of a model whose ranks may read their own rows only, and how many numbers this rank read."""
    read = 0

    def counted(files: WeightFiles, wanted: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, Tensor]]:
        nonlocal read
        for name, rows in WEIGHT_ROWS(files, wanted):
            read += rows.numel()
            yield name, rows

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the whole model was loaded")

    with patch.object(WeightFiles, "rows", counted), patch.object(models, "load_model", refused):
        wrap = ValueModel if critic else LogprobModel
        module = models.build_trainable(spec.model, spec.policy, wrap, seed=spec.seed, world_size=dist.get_world_size())
    return {name: full_tensor(tensor).clone() for name, tensor in module.model.state_dict().items()}, read


def whole_model(spec: PolicySpec) -> dict[str, Tensor]:
    return whole_weights(worker_of(spec))
