"""The policy worker: one rank of the trained model, and everything that touches its weights.

A plain class with coarse methods whose arguments and results pickle, so that it runs in this process or as a Ray actor
unchanged. Every rank is called with the same arguments, takes its part of the rows (`batching/partition.py`), and rank
0 returns the result of all. One rank needs no process group; several must have called `join_ranks`.

Weights and optimiser state are float32 whatever `model.dtype` says: steps of 1e-6 vanish in bfloat16. With bfloat16 the
forward and backward passes run under autocast instead, or on weights that FSDP gathers in bfloat16.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel

from ramet.algorithms.aggregation import TokenCounts
from ramet.algorithms.logprobs import Entropy
from ramet.config.schema import OldLogprobs
from ramet.errors import raise_all
from ramet.models.loading import DTYPES, resolve_device
from ramet.plugins import origin
from ramet.policy.batching.packing import empty_micro_batch
from ramet.policy.batching.partition import RankLayout
from ramet.policy.batching.rows import Floats, Row
from ramet.policy.batching.shared import unique_token_share
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.check import check_policy_options
from ramet.policy.checkpoint.state import export_model
from ramet.policy.distributed.ranks import gather_on_all, gather_on_first, require_ranks, sequence_parallel_group
from ramet.policy.distributed.sharding import reshard
from ramet.policy.errors import TrainingDiverged
from ramet.policy.logprob_model import LogprobModel, LogprobResult, in_row_order
from ramet.policy.lora import merged_shapes, merged_weights
from ramet.policy.metric_accumulator import MetricAccumulator
from ramet.policy.models import reference_model, trainable_model
from ramet.policy.objective import Objective
from ramet.policy.optim import learning_rate
from ramet.policy.progress import PassProgress
from ramet.policy.spec import PolicySpec
from ramet.policy.train_rank import TrainRank

ADVICE = "Lower policy.lr or policy.grad_clip, and look at the rollouts of this step"


class PolicyWorker:
    """Trains the policy as `spec` describes; the weights are `spec.model`'s until `load`."""

    def __init__(self, spec: PolicySpec, *, rank: int = 0, world_size: int = 1) -> None:
        """Raises `ConfigErrors`, and `RuntimeError` if this process has not joined `world_size` ranks as `rank`."""
        if world_size > 1:
            require_ranks(rank, world_size)
        raise_all(check_policy_options(spec.policy, resolve_device(spec.model).type, world_size))
        self.spec = spec
        self.rank = rank
        self.world_size = world_size
        self.layout = RankLayout.of(spec.policy, rank=rank, world_size=world_size)
        group = sequence_parallel_group(spec.policy.sequence_parallel)
        self._logprob_model = trainable_model(spec, world_size=world_size, group=group)
        self._reference = reference_model(spec, world_size=world_size, group=group) if spec.needs_reference else None
        self._objective = Objective(spec)
        self._train_rank = TrainRank(
            self._logprob_model,
            self._logprob_model.model,
            config=spec.model,
            policy=spec.policy,
            layout=self.layout,
            max_bad_steps=spec.train.max_bad_steps,
            seed=spec.seed,
            loss=f"policy loss {origin(spec.policy_loss)}",
            advice=ADVICE,
        )

    @property
    def model(self) -> PreTrainedModel:
        return self._logprob_model.model

    @property
    def reference(self) -> PreTrainedModel | None:
        return None if self._reference is None else self._reference.model

    @property
    def optimizer(self) -> Optimizer:
        return self._train_rank.optimizer

    @property
    def progress(self) -> PassProgress | None:
        """What this rank computes now; from any thread."""
        return self._train_rank.counter.now

    @property
    def bad_steps(self) -> int:
        """Non-finite optimiser steps in a row."""
        return self._train_rank.bad_steps

    def logprobs(self, rows: Sequence[Row]) -> list[Floats]:
        """Log-probabilities of each row's response under the current weights; 0 on inserted tokens.

        In the rows' order on rank 0, empty on others; so are those below.
        """
        return self._on_first(rows, self._own_logprobs(self._logprob_model, rows, Entropy.NONE)).logprobs

    def logprobs_and_entropies(self, rows: Sequence[Row]) -> tuple[list[Floats], list[Floats]]:
        """As `logprobs`, with exact entropies in nats; 0 on inserted tokens."""
        found = self._on_first(rows, self._own_logprobs(self._logprob_model, rows, Entropy.DETACHED))
        return found.logprobs, found.entropies

    def reference_logprobs(self, rows: Sequence[Row]) -> list[Floats]:
        """As `logprobs` under the reference. Raises `RuntimeError` if none was loaded, since nothing needs it."""
        if self._reference is None:
            raise RuntimeError("no reference was loaded: kl_coef is 0 and no algorithm needs it")
        return self._on_first(rows, self._own_logprobs(self._reference, rows, Entropy.NONE)).logprobs

    def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """Train on one step's rows: `train.epochs` passes of `train.minibatches` optimiser steps.

        `step` counts from 1. Log-probabilities that are not given are computed as `train.old_logprobs` asks; if there
        is only one optimiser step, pi_old is the policy itself and costs no pass of its own. Rows whose advantages are
        all 0 are counted, and not computed unless another term of the loss needs them; means over tokens leave them out
        then. Returns metrics on rank 0, nothing on others. Raises `TrainingDiverged` on all, and `OutOfMemory`.
        """
        rows = batch.rows
        started = time.monotonic()
        self._train_rank.step = step
        order = self._train_rank.minibatches(rows, self.spec.train, step)
        batch = replace(batch, ref_logprobs=self._ref_logprobs(rows, batch.ref_logprobs))
        no_signal = frozenset(i for i in range(len(rows)) if not batch.has_signal(i))
        computed = self._computed(batch, no_signal)
        if batch.old_logprobs is None:
            batch = replace(batch, old_logprobs=self._old_logprobs(rows, computed, n_steps=len(order)))
        before = self.spec.critic_warmup_steps
        rate = learning_rate(self.spec.policy, step - before, self.spec.total_steps - before)
        self._train_rank.set_learning_rate(rate)
        metrics, skipped = MetricAccumulator(), 0
        with self._train_rank.updating():
            for i, chosen in enumerate(order):
                try:
                    skipped += not self._optimizer_step(
                        batch, chosen, computed, metrics, step=step, earlier=i, passes=len(order)
                    )
                except TrainingDiverged as error:
                    error.mid_step = skipped < i
                    raise
        found = metrics.result(include=self._train_rank.layout.is_first_of_group)
        if self.rank:
            return {}
        seconds = time.monotonic() - started
        n_computed = sum(rows[i].n_tokens for chosen in order for i in chosen if i in computed)
        return found | {
            "train/lr": rate,
            "train/optimizer_steps": float(len(order) - skipped),
            "train/skipped_updates": float(skipped),
            "train/rows_without_signal": float(len(no_signal)),
            "train/unique_token_share": unique_token_share(rows),
            "train/tokens": float(sum(row.n_trained for row in rows)),
            "train/tokens_per_s": n_computed / max(seconds, 1e-9),
            "train/update_s": seconds,
        }

    def rest(self) -> None:
        """Hold as little device memory as possible until the next call: an engine on this device is about to work."""
        self._train_rank.rest(*([self._reference] if self._reference is not None else []))

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Names and whole tensors of the Hugging Face model's `state_dict`, adapters merged.

        All ranks of a replica iterate together, one tensor at a time. A tensor that is neither sharded nor merged is
        the worker's own, not a copy.
        """
        reshard(self._logprob_model)
        yield from merged_weights(self.model)

    def engine_weights(self) -> Iterator[tuple[str, Tensor]]:
        """As `weights`, in `model.dtype`, which engines compute in: ranks exchange half the bytes for bfloat16."""
        reshard(self._logprob_model)
        yield from merged_weights(self.model, DTYPES[self.spec.model.dtype])

    def engine_shapes(self) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
        """Names, types and shapes of `engine_weights`, in that order; needs no other rank."""
        return merged_shapes(self.model, DTYPES[self.spec.model.dtype])

    def save(self, folder: Path) -> None:
        """Write weights, optimiser and random number states to `folder`, for `load`. All ranks, the same folder.

        Raises `CheckpointError`.
        """
        self._train_rank.save(folder)

    def stage(self) -> None:
        """Copy what `save` would write into host memory; training may go on afterwards.

        Raises `RuntimeError` while the copy before is being written.
        """
        self._train_rank.stage()

    def write_staged(self, folder: Path) -> None:
        """Write what was staged, once. May run in another thread than training. As `save`."""
        self._train_rank.write_staged(folder)

    def load(self, folder: Path) -> None:
        """Go on exactly where `save` was called, by as many ranks or others. Raises `CheckpointError`."""
        self._train_rank.load(folder)

    def export(self, folder: Path) -> None:
        """Write a Hugging Face folder with weights in `model.dtype`, configuration and tokenizer. Rank 0 writes it."""
        if self.layout.replica == 0:
            export_model(folder, self.model, self.weights(), self.spec.model, rank=self.rank)

    def _computed(self, batch: TrainBatch, no_signal: frozenset[int]) -> frozenset[int]:
        """The rows that are computed: those with an advantage, or all of them if the others may add to the loss."""
        all_rows = frozenset(range(len(batch.rows)))
        if not no_signal or batch.returns is not None:
            return all_rows
        zero = self._objective.is_zero_without_advantages(self._train_rank.device)
        return all_rows - no_signal if zero else all_rows

    def _optimizer_step(
        self,
        batch: TrainBatch,
        chosen: Sequence[int],
        computed: frozenset[int],
        metrics: MetricAccumulator,
        *,
        step: int,
        earlier: int,
        passes: int,
    ) -> bool:
        """Accumulate over micro-batches and step. False: not finite, weights and optimiser state are as before.

        It is the one after `earlier` of `passes`. Rows that are not computed count in the denominators. If no row is
        computed, an empty pass gives gradients of 0.
        """
        rows = [batch.rows[i] for i in chosen]
        passed = [i for i in chosen if i in computed]  # forward and backward
        counts = TokenCounts(
            tokens=sum(batch.n_trained(i) for i in chosen),
            sequences=len(rows),
            max_tokens=self.spec.max_response_tokens,
        )
        total = 0.0
        with self._train_rank.within_memory():
            micro_batches = self._train_rank.micro_batches([batch.rows[i] for i in passed])
            own = micro_batches or [empty_micro_batch().to(self._train_rank.device)]
            counted = self._train_rank.counter.over("update", own, earlier=earlier, passes=passes)
            for number, micro_batch in enumerate(counted, start=1):
                with self._train_rank.precision():
                    policy = self._logprob_model.token_logprobs(
                        micro_batch, self.spec.temperature, self._objective.entropy
                    )
                if micro_batch.rows:
                    inputs = batch.inputs([passed[i] for i in micro_batch.rows], self._train_rank.device)
                    loss = self._objective(
                        policy, inputs, counts, metrics, first_step=earlier == 0, kl_coef=batch.kl_coef
                    )
                else:
                    loss = policy.logprobs.sum()  # of no tokens: 0, with a gradient of 0 for every parameter
                total += self._train_rank.backward(loss, last=number == len(own))
        outcome = self._train_rank.optimizer_step(total, rows, step=step)
        if outcome.finite:
            metrics.mean("train/loss", outcome.loss)
            metrics.mean("train/grad_norm", outcome.norm)
        return outcome.finite

    def _old_logprobs(self, rows: Sequence[Row], computed: frozenset[int], *, n_steps: int) -> Sequence[Floats] | None:
        """For the rows that are computed; the others' are never read. None: the policy's own, before its only step."""
        if self.spec.train.old_logprobs is OldLogprobs.ENGINE:
            return [row.engine_logprobs for row in rows]
        if n_steps <= 1:
            return None
        order = sorted(computed)
        chosen = [rows[i] for i in order]
        own = self._own_logprobs(self._logprob_model, chosen, Entropy.NONE)
        found = dict(zip(order, self._on_all(chosen, own), strict=True))
        return [found.get(i, row.engine_logprobs) for i, row in enumerate(rows)]

    def _ref_logprobs(self, rows: Sequence[Row], given: Sequence[Floats] | None) -> Sequence[Floats] | None:
        if given is not None or self._reference is None:
            return given
        return self._on_all(rows, self._own_logprobs(self._reference, rows, Entropy.NONE))

    def _own_logprobs(self, model: LogprobModel, rows: Sequence[Row], entropy: Entropy) -> LogprobResult:
        """Log-probabilities and entropies of this rank's rows, without gradients."""
        found = LogprobResult()
        what = "reference log-probs" if model is self._reference else "old log-probs"
        with torch.no_grad(), self._train_rank.within_memory():
            for batch in self._train_rank.counter.over(what, self._train_rank.micro_batches(rows)):
                with self._train_rank.precision():
                    tokens = model.token_logprobs(batch, self.spec.temperature, entropy)
                found.add(tokens, batch)
        reshard(model)
        return found

    def _on_first(self, rows: Sequence[Row], found: LogprobResult) -> LogprobResult:
        parts = [found] if self.world_size == 1 else gather_on_first(found)
        return in_row_order(rows, parts) if parts else LogprobResult()

    def _on_all(self, rows: Sequence[Row], found: LogprobResult) -> list[Floats]:
        return in_row_order(rows, [found] if self.world_size == 1 else gather_on_all(found)).logprobs
