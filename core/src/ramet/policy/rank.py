"""One rank of the training side: the policy, and its frozen reference, a teacher and the critic if they are needed.

A plain class whose methods have arguments and results that pickle, so that a thread of this process calls them, or Ray
(`cluster.interfaces.Ranks`). Every rank is called with the same arguments, takes its part of the rows
(`batching/partition.py`), and rank 0 returns the result of all, others nothing. One rank needs no process group;
several must have called `join_ranks`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from ramet.algorithms.logprobs import Entropy
from ramet.config.schema import OldLogprobs
from ramet.errors import raise_all
from ramet.models.loading import DTYPES, resolve_device
from ramet.plugins import origin
from ramet.policy.batching.partition import RankLayout
from ramet.policy.batching.rows import Floats, Row
from ramet.policy.batching.shared import unique_token_share
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.check import check_policy_options
from ramet.policy.checkpoint.state import export_model
from ramet.policy.checkpoint.store import verify_part
from ramet.policy.critic import ValueModel, ValueObjective, explained_variance
from ramet.policy.distributed.ranks import require_ranks, sequence_parallel_group
from ramet.policy.distributed.sharding import reshard
from ramet.policy.lora import merged_shapes, merged_weights
from ramet.policy.metric_accumulator import MetricAccumulator
from ramet.policy.model_trainer import ModelTrainer
from ramet.policy.models import build_trainable, reference_model, teacher_model, trainable_model
from ramet.policy.objective import Objective
from ramet.policy.progress import PassProgress
from ramet.policy.spec import CriticSpec, PolicySpec

CRITIC = "critic"  # its folder in a checkpoint, and the beginning of its metrics
ADVICE = "Lower policy.lr or policy.grad_clip, and look at the rollouts of this step"
CRITIC_ADVICE = (
    "Lower the critic's learning rate (advantage.params.critic_lr) or policy.grad_clip, and look at the rewards"
)


class PolicyRank:
    """Trains as `spec` and `critic` describe; the weights come from their `model` until `load`."""

    def __init__(
        self, spec: PolicySpec, critic: CriticSpec | None = None, *, rank: int = 0, world_size: int = 1
    ) -> None:
        """Raises `ConfigErrors`, and `RuntimeError` if this process has not joined `world_size` ranks as `rank`."""
        if world_size > 1:
            require_ranks(rank, world_size)
        raise_all(check_policy_options(spec.policy, resolve_device(spec.model).type, world_size))
        self.spec = spec
        self.rank = rank
        self.layout = RankLayout.of(spec.policy, rank=rank, world_size=world_size)
        group = sequence_parallel_group(spec.policy.sequence_parallel)
        module = trainable_model(spec, world_size=world_size, group=group)
        self.model = module.model
        self.reference = reference_model(spec, world_size=world_size, group=group) if spec.needs_reference else None
        self.teacher = None if spec.teacher is None else teacher_model(spec, world_size=world_size, group=group)
        self.policy = ModelTrainer(
            module,
            module.model,
            name="train",
            config=spec.model,
            policy=spec.policy,
            train=spec.train,
            layout=self.layout,
            total_steps=spec.total_steps,
            seed=spec.seed,
            loss=f"policy loss {origin(spec.policy_loss)}",
            advice=ADVICE,
            steps_before=spec.critic_warmup_steps,
        )
        self.critic = None if critic is None else self._critic(critic, group)
        self._taken: TrainBatch | None = None  # for the next update
        self._value_clip = 0.0 if critic is None else critic.options.value_clip

    def _critic(self, spec: CriticSpec, group: ProcessGroup | None) -> ModelTrainer:
        world_size = self.layout.world_size
        module = build_trainable(
            spec.model, spec.policy, ValueModel, seed=spec.seed, world_size=world_size, group=group
        )
        return ModelTrainer(
            module,
            module.model,
            name=CRITIC,
            config=spec.model,
            policy=replace(spec.policy, lr=spec.options.lr),
            train=spec.train,
            layout=self.layout,
            total_steps=spec.total_steps,
            seed=spec.seed,
            loss="of the critic",
            advice=CRITIC_ADVICE,
        )

    @property
    def progress(self) -> PassProgress | None:
        """The progress of this rank, policy or critic: they take turns. From any thread; None: nothing is counted."""
        return self.policy.counter.now or (None if self.critic is None else self.critic.counter.now)

    def logprobs(self, rows: Sequence[Row]) -> list[Floats]:
        """Return log-probabilities under the current weights, one array `[T]` per row; 0 on inserted tokens."""
        return [logprobs for (logprobs,) in self.policy.compute("old log-probs", rows, *self._with(Entropy.NONE))]

    def logprobs_and_entropies(self, rows: Sequence[Row]) -> tuple[list[Floats], list[Floats]]:
        """Return what `logprobs` does, and exact entropies in nats, which no training step needs."""
        results = self.policy.compute("old log-probs", rows, *self._with(Entropy.DETACHED))
        return [logprobs for logprobs, _ in results], [entropies for _, entropies in results]

    def reference_logprobs(self, rows: Sequence[Row], *, on_all: bool = False) -> list[Floats]:
        """Return what `logprobs` does, by the reference, the frozen copy of the first policy; `on_all`: on all ranks.

        Raises `RuntimeError` if none was loaded, since nothing needs it.
        """
        if self.reference is None:
            raise RuntimeError("no reference was loaded: kl_coef is 0 and no algorithm needs it")
        options = self._with(Entropy.NONE)
        results = self.policy.compute("reference log-probs", rows, *options, module=self.reference, on_all=on_all)
        return [logprobs for (logprobs,) in results]

    def rescore(self, rows: Sequence[Row]) -> list[Floats]:
        """Return what `logprobs` does, by the teacher; without one by the policy under the current weights."""
        options = self._with(Entropy.NONE)
        results = self.policy.compute("rescored log-probs", rows, *options, module=self.teacher)
        return [logprobs for (logprobs,) in results]

    def take(self, parts: Iterable[TrainBatch], kl_coef: float) -> None:
        """Keep the batch of these parts, each with one group's rows and advantages, for `update_taken`. The parts may
        come in any order.
        """
        in_order = sorted(parts, key=lambda part: part.rows[0].group)
        self._taken = TrainBatch.of_parts(in_order, kl_coef=kl_coef).by_thread()

    def add_reference_logprobs(self) -> None:
        """Add `reference_logprobs` to the batch that was taken, on all ranks."""
        rows = self._need_taken().rows
        self._taken = replace(self._need_taken(), ref_logprobs=self.reference_logprobs(rows, on_all=True))

    def update_taken(self, step: int) -> dict[str, float]:
        """Train as `update` does on the batch that was taken, and forget it."""
        batch, self._taken = self._need_taken(), None
        return self.update(batch, step)

    def _need_taken(self) -> TrainBatch:
        if self._taken is None:
            raise RuntimeError("no batch was taken")
        return self._taken

    def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """Train the policy on one step's rows: `train.epochs` passes of `train.minibatches` optimiser steps.

        `step` counts from 1. Log-probabilities that are not given are computed as `train.old_logprobs` asks; if there
        is only one optimiser step, pi_old is the policy itself and costs no extra pass. Rows whose advantages are all 0
        are counted, and not computed unless another term of the loss needs them; means over tokens leave them out then.
        Returns metrics. Raises `TrainingDiverged` on all ranks, and `OutOfMemory`.
        """
        rows, started = batch.rows, time.monotonic()
        order = self.policy.minibatches(batch, step)
        no_signal = frozenset(i for i in range(len(rows)) if not batch.has_signal(i))
        computed = frozenset(range(len(rows)))
        if batch.returns is None and self.spec.skips_without_advantage:
            computed -= no_signal
        if batch.old_logprobs is None:
            batch = replace(batch, old_logprobs=self._old_logprobs(rows, computed, n_steps=len(order)))
        metrics = MetricAccumulator()
        objective = Objective(self.spec, self.policy, batch, metrics)
        measured = self.policy.update(batch, step, objective, metrics, what="update", order=order, computed=computed)
        if self.rank:
            return {}
        seconds = time.monotonic() - started
        n_computed = sum(rows[i].n_tokens for indices in order for i in indices if i in computed)
        return measured | {
            "train/rows_without_signal": float(sum(no_signal.issuperset(own) for own in batch.by_rollout())),
            "train/unique_token_share": unique_token_share(rows),
            "train/tokens": float(sum(row.n_trained for row in rows)),
            "train/tokens_per_s": n_computed / max(seconds, 1e-9),
            "train/update_s": seconds,
        }

    def values(self, rows: Sequence[Row]) -> list[Floats]:
        """Return the critic's value before each sampled token, one array `[T]` per row; 0 on inserted tokens."""
        return [values for (values,) in self._need_critic().compute("values", rows)]

    def update_critic(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """Train the critic as `update` does the policy, towards the returns that the estimator gave.

        The batch has what `values` gave for its rows, too.
        """
        critic, metrics = self._need_critic(), MetricAccumulator()
        objective = ValueObjective(critic, batch, metrics, clip=self._value_clip)
        order, every = critic.minibatches(batch, step), range(len(batch.rows))
        measured = critic.update(batch, step, objective, metrics, what="critic update", order=order, computed=every)
        return measured and measured | {"critic/explained_variance": explained_variance(batch)}

    def rest(self) -> None:
        """Use as little device memory as possible until the next call: an engine on this device is about to work."""
        self.policy.rest(*(model for model in (self.reference, self.teacher) if model is not None))
        if self.critic is not None:
            self.critic.rest()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Give names and full tensors of the Hugging Face model's `state_dict`, adapters merged.

        All ranks of a replica iterate together, one tensor at a time. A tensor that is neither sharded nor merged is
        the rank's own, not a copy.
        """
        reshard(self.policy.module)
        yield from merged_weights(self.model)

    def engine_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Give `weights` in `model.dtype`, which engines compute in: ranks exchange half the bytes for bfloat16."""
        reshard(self.policy.module)
        yield from merged_weights(self.model, DTYPES[self.spec.model.dtype])

    def engine_shapes(self) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
        """Return names, types and shapes of `engine_weights`, in that order; needs no other rank."""
        return merged_shapes(self.model, DTYPES[self.spec.model.dtype])

    def stage(self, waited_for: bool = False) -> None:
        """Copy the contents of a checkpoint into host memory, for `write_staged`. `waited_for`: nothing is trained
        until it is written, so on a CPU nothing is copied.

        Raises `RuntimeError` while the copy before is being written.
        """
        for model, _ in self._saved():
            model.stage(waited_for)

    def write_staged(self, folder: Path) -> None:
        """Write the staged copy, once; in any thread, while training continues. All ranks write to the same folder.

        Raises `CheckpointError`.
        """
        for model, name in self._saved():
            model.write_staged(folder / name)

    def verify(self, folder: Path) -> list[str]:
        """Return the problems of a checkpoint's files that this rank reads (`store.verify_part`); in any thread."""
        return verify_part(folder, self.rank, self.layout.world_size)

    def load(self, folder: Path) -> None:
        """Continue exactly where the checkpoint was staged, by as many ranks or others. Raises `CheckpointError`."""
        for model, name in self._saved():
            model.load(folder / name)

    def export(self, folder: Path) -> None:
        """Write a Hugging Face folder with weights in `model.dtype`, configuration and tokenizer. Rank 0 writes it."""
        if self.layout.replica == 0:
            export_model(folder, self.model, self.weights(), self.spec.model, rank=self.rank)

    def _saved(self) -> list[tuple[ModelTrainer, str]]:
        """The contents of a checkpoint, each with its folder."""
        return [(self.policy, "")] if self.critic is None else [(self.policy, ""), (self.critic, CRITIC)]

    def _need_critic(self) -> ModelTrainer:
        if self.critic is None:
            raise RuntimeError("no critic was built: no algorithm needs values")
        return self.critic

    def _with(self, entropy: Entropy) -> tuple[float, Entropy]:
        """The options of `LogprobModel.forward`."""
        return self.spec.temperature, entropy

    def _old_logprobs(self, rows: Sequence[Row], computed: frozenset[int], *, n_steps: int) -> Sequence[Floats] | None:
        """Return the old log-probabilities of the computed rows; the others' are never read.

        None: the policy's own, before its only step.
        """
        if self.spec.train.old_logprobs is OldLogprobs.ENGINE:
            return [row.engine_logprobs for row in rows]
        if n_steps <= 1:
            return None
        order = sorted(computed)
        options = self._with(Entropy.NONE)
        results = self.policy.compute("old log-probs", [rows[i] for i in order], *options, on_all=True)
        old = {i: logprobs for i, (logprobs,) in zip(order, results, strict=True)}
        return [old.get(i, row.engine_logprobs) for i, row in enumerate(rows)]
