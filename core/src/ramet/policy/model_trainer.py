"""One rank's part of a model in training: its part of the rows, its number type, the update, the checkpoint.

Policy and critic are one each; `rank.PolicyRank` decides what they are trained on and by which loss. All ranks call all
methods together, with the same arguments.

Weights and optimiser state are float32 whatever `model.dtype` says: steps of 1e-6 vanish in bfloat16. With bfloat16 the
forward and backward passes run under autocast instead, or on weights that FSDP gathers in bfloat16.
"""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from ramet.policy.batching.packing import MicroBatch, empty_micro_batch
from ramet.policy.batching.partition import RankLayout, drawn_rows, own_micro_batches, own_shared_micro_batches
from ramet.policy.batching.rows import Floats, Row
from ramet.policy.batching.shared import WORTHWHILE, unique_token_share
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.checkpoint.state import Progress, Staged, load_state, stage_state, write_state
from ramet.policy.distributed.ranks import gather_on_all, gather_on_first, host_group, sum_over_ranks
from ramet.policy.distributed.sharding import add_up_over_replicas, reshard
from ramet.policy.errors import OutOfMemory, TrainingDiverged
from ramet.policy.host_memory import HostBuffers
from ramet.policy.metric_accumulator import MetricAccumulator
from ramet.policy.models import attention_cost, row_cost
from ramet.policy.optim import OffloadedState, clip_gradients, learning_rate, make_optimizer
from ramet.policy.progress import PassCounter
from ramet.policy.shared_attention import has_shared_attention

logger = logging.getLogger(__name__)
MAX_BAD_STEPS = 3  # updates in a row that are not finite: then the run stops


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of one optimiser step, over all ranks. Not finite, or without a gradient: weights and optimiser are as
    before.
    """

    finite: bool
    loss: float
    norm: float  # of the gradient, before clipping


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStep:
    """The rows of one optimiser step, as indices into the step's batch; `is_first`: of its training step."""

    rows: Sequence[int]
    is_first: bool


# The loss of a micro-batch with gradient, its part of the optimiser step's sum. The indices name its rows.
LossOf = Callable[[MicroBatch, Sequence[int], OptimizerStep], Tensor]


class ModelTrainer:
    """`module` runs forward and is sharded; `model` is the transformers model in it."""

    def __init__(
        self,
        module: nn.Module,
        model: PreTrainedModel,
        *,
        name: str,
        config: ModelConfig,
        policy: PolicyConfig,
        train: TrainConfig,
        layout: RankLayout,
        total_steps: int,
        seed: int,
        loss: str,
        advice: str,
        steps_before: int = 0,
    ) -> None:
        """`name` begins the names of its metrics, `loss` names the loss, `advice` ends the message of a training that
        diverged. Its schedule begins after `steps_before` of the `total_steps`.
        """
        self.module = module
        self.model = model
        self.layout = layout
        self.device = resolve_device(config)
        self.optimizer = make_optimizer(model.parameters(), policy)
        self.step = 0  # the last training step
        self.bad_steps = 0  # non-finite optimiser steps in a row
        self._mixed = config.dtype is Dtype.BFLOAT16
        self._name = name
        self._policy = policy
        self._train = train
        self._steps_before, self._total_steps = steps_before, total_steps
        self._seed = seed
        self._loss, self._advice = loss, advice
        self._cost, self._row_cost = attention_cost(model, self.device), row_cost(model, self.device)
        self._host_group = host_group() if layout.world_size > 1 else None
        cuda = self.device.type == "cuda"
        self._offloaded = None
        if policy.offload is Offload.OPTIMIZER:
            self._offloaded = OffloadedState(self.optimizer, self.device, pin=cuda)
        self._copies = HostBuffers(pin=cuda and policy.offload is not Offload.ALL)  # host tensors need no pins
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

    def minibatches(self, batch: TrainBatch, step: int) -> list[list[int]]:
        """Indices of the rows of every optimiser step of one training step."""
        of = self._train.minibatch_of
        whole_groups = of is MinibatchOf.GROUPS or (of is MinibatchOf.AUTO and self.shares_prefixes(batch.rows))
        return drawn_rows(batch, self._train, seed=self._seed, step=step, whole_groups=whole_groups)

    def shares_prefixes(self, rows: Sequence[Row]) -> bool:
        """Whether what these rows have in common is computed once."""
        if not has_shared_attention(self.model.config) or not rows:
            return False
        always = self._policy.share_prefixes is SharePrefixes.ALWAYS
        return always or unique_token_share(rows) < WORTHWHILE

    def forward(self, batch: MicroBatch, *options: object, module: nn.Module | None = None) -> Any:
        """The output of `module` for this micro-batch, by default the trained one, in the number type of `model.dtype`.

        Sharded models compute in the type that their weights are gathered in.
        """
        autocast = self._mixed and self.layout.world_size == 1
        with torch.autocast(self.device.type, torch.bfloat16) if autocast else nullcontext():
            return (module or self.module)(batch, *options)

    def compute(
        self, what: str, rows: Sequence[Row], *options: object, module: nn.Module | None = None, on_all: bool = False
    ) -> list[tuple[Floats, ...]]:
        """The output of `forward` for each row, without gradients: one array `[T]` for each tensor.

        In the order of `rows` on rank 0, or on all ranks; empty on others. `what` names it in the progress.
        """
        computed: dict[int, tuple[Floats, ...]] = {}
        with torch.no_grad(), self.within_memory():
            for batch in self.counter.over(what, self.micro_batches(rows)):
                output = self.forward(batch, *options, module=module)
                tensors = (
                    [output] if isinstance(output, Tensor) else [values for values in output if values is not None]
                )
                pieces = [torch.split(values.cpu(), list(batch.lengths)) for values in tensors]
                for i, *arrays in zip(batch.rows, *pieces, strict=True):
                    computed[i] = tuple(array.numpy().copy() for array in arrays)
        reshard(module or self.module)
        gather = gather_on_all if on_all else gather_on_first
        parts = [computed] if self.layout.world_size == 1 else gather(computed)
        # Ranks that share sequences have the same rows; any of them is taken.
        return [next(part[i] for part in parts if i in part) for i in range(len(rows))] if parts else []

    def update(
        self,
        batch: TrainBatch,
        step: int,
        loss_of: LossOf,
        metrics: MetricAccumulator,
        *,
        what: str,
        order: Sequence[Sequence[int]],
        computed: Collection[int],
    ) -> dict[str, float]:
        """Make one optimiser step for each mini-batch of `order`. Rows that are not `computed` need no pass.

        Returns metrics on rank 0, with those that `loss_of` adds to `metrics`, and nothing on others. With
        `policy.offload=optimizer` the first optimiser step brings the optimiser's state to the device, where it stays
        until this ends. Raises `TrainingDiverged` on all, and `OutOfMemory`.
        """
        self.step = step
        before = self._steps_before
        rate = learning_rate(self._policy, step - before, self._total_steps - before)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        skipped = stepped = 0
        try:
            for done, indices in enumerate(order):
                part = OptimizerStep(rows=indices, is_first=done == 0)
                passed = [i for i in indices if i in computed]  # forward and backward
                loss = torch.zeros((), dtype=torch.float64, device=self.device)  # float() would wait for every pass
                with self.within_memory():
                    # Without a row an empty pass gives gradients of 0.
                    rows = [batch.rows[i] for i in passed]
                    batches = self.micro_batches(rows) or [empty_micro_batch().to(self.device)]
                    counted = self.counter.over(what, batches, earlier=done, passes=len(order))
                    for number, micro_batch in enumerate(counted, start=1):
                        scalar = loss_of(micro_batch, [passed[i] for i in micro_batch.rows], part)
                        loss = loss + self._backward(scalar, last=number == len(batches))
                outcome = self.optimizer_step(loss, [batch.rows[i] for i in indices], mid_step=stepped > 0)
                skipped += not outcome.finite
                stepped += outcome.finite and outcome.norm > 0
                if outcome.finite:
                    metrics.mean(f"{self._name}/loss", outcome.loss)
                    metrics.mean(f"{self._name}/grad_norm", outcome.norm)
        finally:
            self._offload_optimizer()
        collected = metrics.result(include=self.layout.is_first_of_group)
        extra = {"lr": rate, "skipped_updates": float(skipped), "optimizer_steps": float(stepped)}
        return (
            collected | {f"{self._name}/{name}": value for name, value in extra.items()}
            if self.layout.rank == 0
            else {}
        )

    @contextmanager
    def within_memory(self) -> Iterator[None]:
        """Raise `OutOfMemory`, which names what helps, for passes in the block; gradients are dropped."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            self.optimizer.zero_grad(set_to_none=True)
            raise OutOfMemory(
                f"policy rank {self.layout.rank}: the memory of {self.device} is too small for a pass: "
                f"{str(error).splitlines()[0]} {self._less_memory()}; `ramet train … --dry-run` "
                "estimates what each helps (docs/troubleshooting.md#out-of-memory)"
            ) from error

    def _less_memory(self) -> str:
        """Settings that lower what a pass needs, and are not at their end already."""
        size = self.layout.world_size
        ways = [
            f"Lower policy.max_microbatch_tokens={self._policy.max_microbatch_tokens}",
            "" if self._policy.checkpoint_every == 1 else "set policy.activation_checkpointing=true",
            f"raise cluster.policy_workers={size}"
            if size > 1
            else "use several ranks (cluster=ray cluster.policy_workers=2)",
            f"lower policy.replicas={self.layout.replicas}" if self.layout.replicas > 1 else "",
        ]
        return ", or ".join(filter(None, ways))

    def _backward(self, loss: Tensor, *, last: bool) -> Tensor:
        """Add the gradient of a micro-batch's loss, the `last` of an optimiser step's or not. Returns this rank's part
        of the sum over all ranks, a scalar on the device.
        """
        if self.layout.replicas > 1:
            add_up_over_replicas(self.module, last)
        loss.backward()  # type: ignore[no-untyped-call]
        value = loss.detach().double()
        return value if self.layout.is_first_of_group else torch.zeros_like(value)

    def optimizer_step(self, part: Tensor, rows: Sequence[Row], *, mid_step: bool) -> Outcome:
        """Clip the gradients and step, unless something is not finite on any rank; `part` is this rank's of the loss.

        Without a gradient (no row has an advantage) there is no step: AdamW's momentum would move the weights as far as
        a step with one, away from what earlier rewards asked for (docs/algorithms.md#a-step-without-signal).
        Raises `TrainingDiverged` if that happened `MAX_BAD_STEPS` times in a row. `mid_step`: another optimiser
        step of this training step has changed the weights.
        """
        norm = clip_gradients(self.model.parameters(), self._policy.grad_clip)
        loss = self._sum(float(part))
        finite = self._sum(float(not (math.isfinite(loss) and math.isfinite(norm)))) == 0
        if finite and norm > 0:
            if self._offloaded is not None:
                self._offloaded.to_device()
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        outcome = Outcome(finite=finite, loss=loss, norm=norm)
        self.bad_steps = 0 if finite else self.bad_steps + 1
        if not finite:
            self._report_bad_step(outcome, rows, mid_step=mid_step)
        return outcome

    def rest(self, *others: nn.Module) -> None:
        """Keep only this rank's shards on the device until the next call; `others`: models in addition to the trained
        one.

        Memory that a pass needed at its peak stays reserved by this process until it is given back, even if another
        needs it.
        """
        for module in (self.module, *others):
            reshard(module)
        if self.device.type == "cuda":
            gc.collect()  # before the cache is emptied, or tensors in reference cycles would stay; 0.2 seconds
            torch.cuda.synchronize(self.device)  # memory that a running kernel uses cannot be given back
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]  # nor what an engine has mapped, before it is known that it no longer does
            torch.cuda.empty_cache()

    def stage(self, waited_for: bool = False) -> None:
        """Copy weights, optimiser, counts and random number states into host memory, for `write_staged`.

        There is one copy, whose memory is used every time. On a CPU nothing is copied if nothing is trained until it
        is written (`waited_for`). Raises `RuntimeError` while the copy before is being written.
        """
        if self._writing:
            raise RuntimeError("the copy before is still being written; wait until write_staged() is done")
        reshard(self.module)
        progress = Progress(step=self.step, bad_steps=self.bad_steps)
        rank, world_size = self.layout.rank, self.layout.world_size
        copies = None if waited_for and self.device.type == "cpu" else self._copies
        self._staged = stage_state(self.model, self.optimizer, progress, copies, rank=rank, world_size=world_size)

    def write_staged(self, folder: Path) -> None:
        """Write the staged copy, once; in any thread, while training continues. Raises `CheckpointError`."""
        staged, self._staged = self._staged, None
        if staged is None:
            raise RuntimeError("nothing is staged; call stage() first")
        self._writing = True
        try:
            write_state(folder, staged, self._host_group)
        finally:
            self._writing = False

    def load(self, folder: Path) -> None:
        """Continue exactly where the checkpoint was staged, by as many ranks or others. Raises `CheckpointError`."""
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

    def _sum(self, value: float) -> float:
        return value if self.layout.world_size == 1 else sum_over_ranks(value)

    def _offload_optimizer(self) -> None:
        """Keep the optimiser's state in host memory between updates, if `policy.offload` asks for it."""
        if self._offloaded is not None:
            self._offloaded.to_host()

    def _report_bad_step(self, outcome: Outcome, rows: Sequence[Row], *, mid_step: bool) -> None:
        tasks = sorted({row.task_id for row in rows})
        what = f"step {self.step}: loss {outcome.loss} ({self._loss}), gradient norm {outcome.norm}"
        if self.layout.rank == 0:
            logger.error(
                "%s: optimiser step skipped, weights unchanged; %d tasks, first %s", what, len(tasks), tasks[:3]
            )
        if self.bad_steps >= MAX_BAD_STEPS:
            error = TrainingDiverged(
                f"{what}: not finite {self.bad_steps} times in a row; the weights are from the last good "
                f"step. {self._advice}"
            )
            error.mid_step = mid_step
            raise error
