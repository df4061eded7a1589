"""The critic worker: one rank of the value model, for estimators that need values (`Need.VALUES`).

As the policy worker it is a plain class that every rank calls with all rows; each takes its part, and rank 0 returns
the result of all. Packing, number types, optimiser, schedule, mini-batches and checkpoints are the policy's, with the
critic's own learning rate; what is trained is V towards the returns that the estimator gave.

The value model is the policy's architecture and first weights, with one number per token instead of V logits. Its head
begins at 0, so that the first values are 0 and the first advantages plain returns; noise would only have to be
unlearned. Weights are float32 or gathered in bfloat16 as the policy's are, but the head multiplies in float32: three
digits are too few for a return.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.functional import linear
from transformers import PreTrainedModel

from ramet.algorithms.aggregation import aggregate
from ramet.algorithms.value_loss import value_loss
from ramet.errors import raise_all
from ramet.models.loading import resolve_device
from ramet.policy.batching.gather import gathered
from ramet.policy.batching.packing import MicroBatch
from ramet.policy.batching.partition import RankLayout
from ramet.policy.batching.rows import Floats, Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.check import check_policy_options
from ramet.policy.distributed.ranks import gather_on_first, require_ranks, sequence_parallel_group
from ramet.policy.distributed.sharding import reshard
from ramet.policy.distributed.ulysses import join_values, ulysses_states
from ramet.policy.errors import TrainingDiverged
from ramet.policy.logprob_model import hidden_states
from ramet.policy.metric_accumulator import MetricAccumulator
from ramet.policy.models import build_trainable
from ramet.policy.optim import learning_rate
from ramet.policy.progress import PassProgress
from ramet.policy.spec import CriticSpec
from ramet.policy.train_rank import TrainRank

FOLDER = "critic"  # in a checkpoint
ADVICE = "Lower the critic's learning rate (advantage.params.critic_lr) or policy.grad_clip, and look at the rewards"


class ValueModel(nn.Module):
    """Replaces `model`'s output head. `group` are the ranks that share each sequence; None: each rank has its own."""

    def __init__(self, model: PreTrainedModel, group: ProcessGroup | None = None) -> None:
        super().__init__()
        model.set_output_embeddings(_zero_head(model))  # type: ignore[no-untyped-call]
        model.config.tie_word_embeddings = False  # the head is no longer the embeddings
        self.model = model
        self.group = group

    def forward(self, batch: MicroBatch) -> Tensor:
        """`[T]` float32 on the response axis: the value before each sampled token; 0 on inserted tokens.

        It is computed at the position that predicts the token, and so does not depend on it.
        """
        # Values [n] of the trained tokens; with Ulysses each rank computes those [m] of its own positions.
        if self.group is None:
            values = self._values(gathered(hidden_states(self.model, batch).flatten(0, 1), batch.predict))
        else:
            states, own = ulysses_states(
                self.model, batch.input_ids, batch.position_ids, batch.predict, self.group, batch.attention
            )
            values = join_values(self._values(states), own, len(batch.targets), self.group)
        return batch.on_responses(values)  # [n] -> [T]

    def _values(self, states: Tensor) -> Tensor:
        """`[n]` float32 from hidden states `[n, H]`."""
        head = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        with torch.autocast(states.device.type, enabled=False):
            return linear(states.float(), head.weight.float()).squeeze(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Targets:
    """Sequences hold one array per row, over its response."""

    rows: Sequence[Row]
    returns: Sequence[Floats]
    old_values: Sequence[Floats]

    def explained_variance(self) -> float:
        """1: the values are the returns, 0: no better than their mean. Also 0 if all returns are the same."""
        mask = np.concatenate([row.mask for row in self.rows])
        returns = np.concatenate(self.returns)[mask].astype(np.float64)
        errors = returns - np.concatenate(self.old_values)[mask]
        variance = returns.var() if len(returns) else 0.0
        return float(1 - errors.var() / variance) if variance > 0 else 0.0


def _targets(batch: TrainBatch) -> _Targets:
    if batch.returns is None or batch.values is None:
        raise ValueError("a critic is trained on returns and on its values before the update; the batch lacks them")
    return _Targets(rows=batch.rows, returns=batch.returns, old_values=batch.values)


class CriticWorker:
    """Trains the critic. Its body's weights are `spec.model`'s until `load`."""

    def __init__(self, spec: CriticSpec, *, rank: int = 0, world_size: int = 1) -> None:
        """Raises `ConfigErrors`, and `RuntimeError` if this process has not joined `world_size` ranks as `rank`."""
        if world_size > 1:
            require_ranks(rank, world_size)
        raise_all(check_policy_options(spec.policy, resolve_device(spec.model).type, world_size))
        self.spec = spec
        self.rank = rank
        self._policy = replace(spec.policy, lr=spec.options.lr)
        layout = RankLayout.of(spec.policy, rank=rank, world_size=world_size)
        group = sequence_parallel_group(spec.policy.sequence_parallel)
        self._module = build_trainable(
            spec.model, spec.policy, ValueModel, seed=spec.seed, world_size=world_size, group=group
        )
        self._train_rank = TrainRank(
            self._module,
            self._module.model,
            config=spec.model,
            policy=self._policy,
            layout=layout,
            max_bad_steps=spec.train.max_bad_steps,
            seed=spec.seed,
            loss="of the critic",
            advice=ADVICE,
        )

    @property
    def progress(self) -> PassProgress | None:
        """What this rank computes now; from any thread."""
        return self._train_rank.counter.now

    def values(self, rows: Sequence[Row]) -> list[Floats]:
        """The value before each sampled token of the responses, `[T]` per row; 0 on inserted tokens.

        In the rows' order on rank 0, empty on others.
        """
        found: dict[int, Floats] = {}
        with torch.no_grad(), self._train_rank.within_memory():
            for batch in self._train_rank.counter.over("values", self._train_rank.micro_batches(rows)):
                pieces = torch.split(self._forward(batch).cpu(), list(batch.lengths))
                found |= {i: piece.numpy().copy() for i, piece in zip(batch.rows, pieces, strict=True)}
        reshard(self._module)
        parts = [found] if self._train_rank.layout.world_size == 1 else gather_on_first(found)
        return [next(part[i] for part in parts if i in part) for i in range(len(rows))] if parts else []

    def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """Train on one step's rows: `train.epochs` passes of `train.minibatches` optimiser steps.

        `step` counts from 1. The batch has the estimator's returns and what `values` gave for its rows. Returns metrics
        on rank 0, nothing on others. Raises `TrainingDiverged` on all.
        """
        targets = _targets(batch)
        rate = learning_rate(self._policy, step, self.spec.total_steps)
        self._train_rank.set_learning_rate(rate)
        metrics, skipped = MetricAccumulator(), 0
        order = self._train_rank.minibatches(batch.rows, self.spec.train, step)
        with self._train_rank.updating():
            for i, chosen in enumerate(order):
                try:
                    skipped += not self._optimizer_step(
                        targets, chosen, metrics, step=step, earlier=i, passes=len(order)
                    )
                except TrainingDiverged as error:
                    error.mid_step = skipped < i
                    raise
        found = metrics.result(include=self._train_rank.layout.is_first_of_group)
        if self.rank:
            return {}
        return found | {
            "critic/lr": rate,
            "critic/explained_variance": targets.explained_variance(),
            "critic/skipped_updates": float(skipped),
        }

    def rest(self) -> None:
        """Hold as little device memory as possible until the next call: an engine on this device is about to work."""
        self._train_rank.rest()

    def save(self, folder: Path) -> None:
        """Write what `load` needs to `folder/critic`. All ranks, the same folder. Raises `CheckpointError`."""
        self._train_rank.save(folder / FOLDER)

    def stage(self) -> None:
        """Copy what `save` would write into host memory; training may go on afterwards.

        Raises `RuntimeError` while the copy before is being written.
        """
        self._train_rank.stage()

    def write_staged(self, folder: Path) -> None:
        """Write what was staged, once. May run in another thread than training. As `save`."""
        self._train_rank.write_staged(folder / FOLDER)

    def load(self, folder: Path) -> None:
        """Go on exactly where `save` was called, by as many ranks or others. Raises `CheckpointError`."""
        self._train_rank.load(folder / FOLDER)

    def _optimizer_step(
        self,
        targets: _Targets,
        chosen: Sequence[int],
        metrics: MetricAccumulator,
        *,
        step: int,
        earlier: int,
        passes: int,
    ) -> bool:
        rows = [targets.rows[i] for i in chosen]
        n_tokens = max(sum(row.n_trained for row in rows), 1)
        total = 0.0
        with self._train_rank.within_memory():
            batches = self._train_rank.micro_batches(rows)
            counted = self._train_rank.counter.over("critic update", batches, earlier=earlier, passes=passes)
            for number, batch in enumerate(counted, start=1):
                loss = self._loss(self._forward(batch), targets, [chosen[i] for i in batch.rows], metrics)
                total += self._train_rank.backward(loss / n_tokens, last=number == len(batches))
        outcome = self._train_rank.optimizer_step(total, rows, step=step)
        if outcome.finite:
            metrics.mean("critic/loss", outcome.loss)
            metrics.mean("critic/grad_norm", outcome.norm)
        return outcome.finite

    def _loss(self, values: Tensor, targets: _Targets, chosen: Sequence[int], metrics: MetricAccumulator) -> Tensor:
        """The sum over the sampled tokens of a micro-batch; of an empty one 0, with a gradient for every parameter."""
        if not chosen:
            return values.sum()

        def joined(arrays: Sequence[NDArray[Any]]) -> Tensor:
            return torch.from_numpy(np.concatenate([arrays[i] for i in chosen])).to(values.device)

        mask = joined([row.mask for row in targets.rows])
        old_values, returns = joined(targets.old_values), joined(targets.returns)
        loss = value_loss(values, old_values, returns, self.spec.options.value_clip)
        metrics.token_mean("critic/clip_fraction", loss.clipped, mask)
        return aggregate(loss.per_token, mask.float())

    def _forward(self, batch: MicroBatch) -> Tensor:
        with self._train_rank.precision():
            values: Tensor = self._module(batch)
        return values


def _zero_head(model: PreTrainedModel) -> nn.Linear:
    device = "cpu" if model.device.type == "meta" else model.device  # it has values from now on; no file holds it
    head = nn.Linear(model.config.hidden_size, 1, bias=False, device=device)
    nn.init.zeros_(head.weight)
    return head
