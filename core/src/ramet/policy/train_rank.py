"""One rank's part of a model in training: its part of the rows, its number type, the optimiser step, the checkpoint.

Its owner decides what is trained and by which loss. All ranks call all methods together, with the same arguments.
"""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ramet.config.schema import (
    Dtype,
    MinibatchOf,
    ModelConfig,
    Offload,
    PolicyConfig,
    SharePrefixes,
    TrainConfig,
)
from ramet.models.loading import resolve_device
from ramet.policy.batching.packing import MicroBatch
from ramet.policy.batching.partition import RankLayout, drawn_rows, own_micro_batches, own_shared_micro_batches
from ramet.policy.batching.rows import Row
from ramet.policy.batching.shared import WORTHWHILE, unique_token_share
from ramet.policy.checkpoint.state import Progress, Staged, load_state, stage_state, write_state
from ramet.policy.distributed.ranks import host_group, sum_over_ranks
from ramet.policy.distributed.sharding import add_up_over_replicas, reshard
from ramet.policy.errors import OutOfMemory, TrainingDiverged
from ramet.policy.host_memory import HostBuffers
from ramet.policy.models import attention_cost, row_cost
from ramet.policy.optim import OffloadedState, clip_gradients, make_optimizer
from ramet.policy.progress import PassCounter
from ramet.policy.shared_attention import has_shared_attention

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one optimiser step, over all ranks. Not finite: weights and optimiser are as before."""

    finite: bool
    loss: float
    norm: float  # of the gradient, before clipping


class TrainRank:
    """`module` is what runs forward and what is sharded; `model` is the transformers model in it."""

    def __init__(
        self,
        module: nn.Module,
        model: PreTrainedModel,
        *,
        config: ModelConfig,
        policy: PolicyConfig,
        layout: RankLayout,
        max_bad_steps: int,
        seed: int,
        loss: str,
        advice: str,
    ) -> None:
        """`loss` names what is trained on, `advice` ends the message of a training that diverged."""
        self.module = module
        self.model = model
        self.layout = layout
        self.device = resolve_device(config)
        self.optimizer = make_optimizer(model.parameters(), policy)
        self.step = 0  # the last training step
        self.bad_steps = 0  # non-finite optimiser steps in a row
        self._mixed = config.dtype is Dtype.BFLOAT16
        self._policy = policy
        self._max_bad_steps = max_bad_steps
        self._seed = seed
        self._loss, self._advice = loss, advice
        self._cost, self._row_cost = attention_cost(model, self.device), row_cost(model, self.device)
        self._host_group = host_group() if layout.world_size > 1 else None
        cuda = self.device.type == "cuda"
        self._offloaded = None
        if policy.offload is Offload.OPTIMIZER:
            self._offloaded = OffloadedState(self.optimizer, self.device, pin=cuda)
        self._copies = HostBuffers(pin=cuda and policy.offload is not Offload.ALL)  # what is on the host needs no pins
        self._staged: Staged | None = None
        self._writing = False  # the copies, maybe in another thread
        self.counter = PassCounter()

    def micro_batches(self, rows: Sequence[Row]) -> list[MicroBatch]:
        """This rank's. Ranks that share sequences have a common budget, `policy.max_microbatch_tokens` for each."""
        budget = self._policy.max_microbatch_tokens * self.layout.sequence_parallel
        if self.shares_prefixes(rows):
            batches = own_shared_micro_batches(rows, self.layout, budget=budget, cost=self._row_cost)
        else:
            batches = own_micro_batches(rows, self.layout, budget=budget, cost=self._cost, row_cost=self._row_cost)
        return [batch.to(self.device) for batch in batches]

    def minibatches(self, rows: Sequence[Row], train: TrainConfig, step: int) -> list[list[int]]:
        """Indices of the rows of every optimiser step of one training step."""
        of = train.minibatch_of
        whole_groups = of is MinibatchOf.GROUPS or (of is MinibatchOf.AUTO and self.shares_prefixes(rows))
        return drawn_rows(rows, train, seed=self._seed, step=step, whole_groups=whole_groups)

    def shares_prefixes(self, rows: Sequence[Row]) -> bool:
        """Whether what these rows have in common is computed once."""
        if not has_shared_attention(self.model.config) or not rows:
            return False
        always = self._policy.share_prefixes is SharePrefixes.ALWAYS
        return always or unique_token_share(rows) < WORTHWHILE

    def precision(self) -> AbstractContextManager[object]:
        """For a forward pass. Sharded models compute in the type that their weights are gathered in."""
        if self.layout.world_size > 1:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self._mixed)

    @contextmanager
    def within_memory(self) -> Iterator[None]:
        """Around passes. Raises `OutOfMemory`, which names what helps; gradients are dropped."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            self.optimizer.zero_grad(set_to_none=True)
            raise OutOfMemory(
                f"policy rank {self.layout.rank}: the memory of {self.device} is too small for a pass: "
                f"{str(error).splitlines()[0]} {self._less_memory()}; `ramet train … --dry-run` "
                "estimates what each helps"
            ) from error

    def _less_memory(self) -> str:
        """Settings that lower what a pass needs, and are not at their end already."""
        size = self.layout.world_size
        ways = [
            f"Lower policy.max_microbatch_tokens={self._policy.max_microbatch_tokens}",
            "" if self._policy.activation_checkpointing else "set policy.activation_checkpointing=true",
            f"raise cluster.policy_workers={size}"
            if size > 1
            else "use several ranks (cluster=ray cluster.policy_workers=2)",
            f"lower policy.replicas={self.layout.replicas}" if self.layout.replicas > 1 else "",
        ]
        return ", or ".join(filter(None, ways))

    def backward(self, loss: Tensor, *, last: bool) -> float:
        """Add the gradient of a micro-batch's loss, the `last` of an optimiser step's or not. Returns this rank's part
        of the sum over all ranks.
        """
        if self.layout.replicas > 1:
            add_up_over_replicas(self.module, last)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()) if self.layout.is_first_of_group else 0.0

    def set_learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Around the optimiser steps of one training step. With `policy.offload=optimizer` the first of them brings the
        optimiser's state to the device, where it stays until this ends.
        """
        try:
            yield
        finally:
            self._offload_optimizer()

    def optimizer_step(self, loss: float, rows: Sequence[Row], *, step: int) -> Outcome:
        """Clip the gradients and step, unless something is not finite on any rank; `loss` is this rank's part.

        Raises `TrainingDiverged` if that happened `max_bad_steps` times in a row.
        """
        self.step = step
        loss = self._sum(loss)
        norm = clip_gradients(self.model.parameters(), self._policy.grad_clip)
        finite = self._sum(float(not (math.isfinite(loss) and math.isfinite(norm)))) == 0
        outcome = Outcome(finite=finite, loss=loss, norm=norm)
        if finite:
            self._step_optimizer()
        self.optimizer.zero_grad(set_to_none=True)
        self._count_bad_steps(outcome, rows)
        return outcome

    def rest(self, *others: nn.Module) -> None:
        """Keep only this rank's shards on the device until the next call; `others` are models beside the trained one.

        What a pass needed at its peak stays reserved by this process until it is given back, whoever else needs it.
        """
        for module in (self.module, *others):
            reshard(module)
        gc.collect()  # before the cache is emptied: what only a cycle holds would stay
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # memory that a running kernel uses cannot be given back
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]  # nor what an engine has mapped, before it is known that it no longer does
            torch.cuda.empty_cache()

    def save(self, folder: Path) -> None:
        """Write weights, optimiser, counts and random number states. Raises `CheckpointError`."""
        write_state(folder, self._state(), self._host_group)

    def stage(self) -> None:
        """Copy what `save` would write into host memory; training may go on afterwards.

        There is one copy, whose memory is used every time. Raises `RuntimeError` while it is being written.
        """
        if self._writing:
            raise RuntimeError("the copy before is still being written; wait until write_staged() is done")
        self._staged = self._state(self._copies)

    def write_staged(self, folder: Path) -> None:
        """Write what was staged, once. May run in another thread than training. As `save`."""
        staged, self._staged = self._staged, None
        if staged is None:
            raise RuntimeError("nothing is staged; call stage() first")
        self._writing = True
        try:
            write_state(folder, staged, self._host_group)
        finally:
            self._writing = False

    def load(self, folder: Path) -> None:
        """Go on exactly where `save` was called, by as many ranks or others. Raises `CheckpointError`."""
        reshard(self.module)
        progress = load_state(
            folder,
            self.model,
            self.optimizer,
            rank=self.layout.rank,
            world_size=self.layout.world_size,
            seed=self._seed,
            group=self._host_group,
        )
        self.step, self.bad_steps = progress.step, progress.bad_steps
        self._offload_optimizer()

    def _state(self, buffers: HostBuffers | None = None) -> Staged:
        reshard(self.module)
        progress = Progress(step=self.step, bad_steps=self.bad_steps)
        rank, world_size = self.layout.rank, self.layout.world_size
        return stage_state(self.model, self.optimizer, progress, rank=rank, world_size=world_size, buffers=buffers)

    def _sum(self, value: float) -> float:
        return value if self.layout.world_size == 1 else sum_over_ranks(value)

    def _step_optimizer(self) -> None:
        if self._offloaded is not None:
            self._offloaded.to_device()
        self.optimizer.step()

    def _offload_optimizer(self) -> None:
        """Between updates the optimiser's state is kept in host memory, if `policy.offload` asks for it."""
        if self._offloaded is not None:
            self._offloaded.to_host()

    def _count_bad_steps(self, outcome: Outcome, rows: Sequence[Row]) -> None:
        if outcome.finite:
            self.bad_steps = 0
            return
        self.bad_steps += 1
        tasks = sorted({row.task_id for row in rows})
        what = f"step {self.step}: loss {outcome.loss} ({self._loss}), gradient norm {outcome.norm}"
        if self.layout.rank == 0:
            logger.error(
                "%s: optimiser step skipped, weights unchanged; %d tasks, first %s", what, len(tasks), tasks[:3]
            )
        if self.bad_steps >= self._max_bad_steps:
            raise TrainingDiverged(
                f"{what}: not finite {self.bad_steps} times in a row (train.max_bad_steps={self._max_bad_steps}); the "
                f"weights are those of the last good step. {self._advice}"
            )
