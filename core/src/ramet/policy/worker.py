"""The policy worker: holds the trained model and does everything that touches its weights.

A plain class with coarse methods whose arguments and results pickle, so that it runs in this process or as a Ray actor
unchanged. It is given its rank's rows; whatever is counted passes through `sum_over_ranks`.

Weights and optimiser state are float32 whatever `model.dtype` says: steps of 1e-6 vanish in bfloat16. With bfloat16 the
forward and backward passes run under autocast instead, as mixed precision does.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ramet.algorithms.aggregation import TokenCounts
from ramet.algorithms.logprobs import Entropy
from ramet.config.schema import Dtype, OldLogprobs
from ramet.errors import ConfigError
from ramet.policy.batch import Floats, Row, unpadded
from ramet.policy.errors import TrainingDiverged
from ramet.policy.forward import TokenScores, score_tokens
from ramet.policy.models import attention_cost, reference_model, trainable_model
from ramet.policy.objective import Objective
from ramet.policy.optim import clip_gradients, learning_rate, make_optimizer
from ramet.policy.packing import MicroBatch, micro_batches
from ramet.policy.ranks import sum_over_ranks
from ramet.policy.spec import PolicySpec
from ramet.policy.state import export_model, load_state, save_state
from ramet.policy.step_data import StepData
from ramet.policy.tally import Tally

logger = logging.getLogger(__name__)


class PolicyWorker:
    """Trains the policy. `spec` says with what; the weights are `spec.model`'s until `load`."""

    def __init__(self, spec: PolicySpec, *, rank: int = 0, world_size: int = 1) -> None:
        if world_size != 1:
            raise ConfigError(f"cluster: the policy runs on 1 rank, got {world_size}; sharding is not built in")
        self.spec = spec
        self.rank = rank
        self.world_size = world_size
        self.model = trainable_model(spec)
        self.reference = reference_model(spec) if spec.needs_reference else None
        self.optimizer = make_optimizer(self.model.parameters(), spec.policy)
        self.bad_steps = 0  # non-finite optimiser steps in a row
        self._objective = Objective(spec)
        self._cost = attention_cost(self.model)

    def logprobs(self, rows: Sequence[Row]) -> list[Floats]:
        """Log-probabilities of each row's response under the current weights; 0 on inserted tokens."""
        return self._score(self.model, rows, Entropy.NONE)[0]

    def logprobs_and_entropies(self, rows: Sequence[Row]) -> tuple[list[Floats], list[Floats]]:
        """As `logprobs`, with exact entropies in nats; 0 on inserted tokens."""
        return self._score(self.model, rows, Entropy.DETACHED)

    def reference_logprobs(self, rows: Sequence[Row]) -> list[Floats]:
        """As `logprobs` under the reference. Raises `RuntimeError` if nobody said that it is needed."""
        if self.reference is None:
            raise RuntimeError("no reference was loaded: kl_coef is 0 and no algorithm needs it")
        return self._score(self.reference, rows, Entropy.NONE)[0]

    def update(
        self,
        rows: Sequence[Row],
        advantages: Tensor,
        *,
        step: int,
        old_logprobs: Sequence[Floats] | None = None,
        ref_logprobs: Sequence[Floats] | None = None,
        returns: Tensor | None = None,
    ) -> dict[str, float]:
        """Train on one step's rows: `train.epochs` passes of `train.minibatches` optimiser steps. Returns metrics.

        `step` counts from 1. `advantages` and `returns` are `[N, T]` as an estimator gives them. Log-probabilities that
        are not given are found as `train.old_logprobs` says; where one optimiser step is all, pi_old is the policy
        itself and costs no pass of its own. Raises `TrainingDiverged`.
        """
        started = time.monotonic()
        order = self._minibatches(rows, step)
        data = StepData(
            rows=rows,
            advantages=unpadded(rows, advantages),
            old_logprobs=self._old_logprobs(rows, old_logprobs, n_steps=len(order)),
            ref_logprobs=self._ref_logprobs(rows, ref_logprobs),
            returns=None if returns is None else unpadded(rows, returns),
        )
        rate = self._set_rate(step)
        tally, skipped = Tally(), 0
        for i, chosen in enumerate(order):
            try:
                skipped += not self._optimizer_step(data, chosen, tally, step=step, first_step=i == 0)
            except TrainingDiverged as error:
                error.mid_step = skipped < i
                raise
        seconds = time.monotonic() - started
        fed = sum(rows[i].n_tokens for chosen in order for i in chosen)
        return tally.result() | {
            "train/lr": rate,
            "train/optimizer_steps": float(len(order) - skipped),
            "train/skipped_updates": float(skipped),
            "train/tokens": sum_over_ranks(sum(row.n_trained for row in rows)),
            "train/tokens_per_s": sum_over_ranks(fed) / max(seconds, 1e-9),
            "train/update_s": seconds,
        }

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors of the Hugging Face model's `state_dict`; the tensors are the worker's own."""
        for name, tensor in self.model.state_dict().items():
            yield name, tensor.detach()

    def save(self, folder: Path) -> None:
        """Write weights, optimiser and random number states to `folder`, for `load`."""
        save_state(folder, self.model, self.optimizer, rank=self.rank, world_size=self.world_size, bad=self.bad_steps)

    def load(self, folder: Path) -> None:
        """Go on exactly where `save` was called. Raises `CheckpointError`."""
        self.bad_steps = load_state(folder, self.model, self.optimizer, rank=self.rank, world_size=self.world_size)

    def export(self, folder: Path) -> None:
        """Write a Hugging Face folder with weights in `model.dtype`, configuration and tokenizer."""
        export_model(folder, self.model, self.spec.model)

    def _set_rate(self, step: int) -> float:
        rate = learning_rate(self.spec.policy, step, self.spec.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _optimizer_step(
        self, data: StepData, chosen: Sequence[int], tally: Tally, *, step: int, first_step: bool
    ) -> bool:
        """Accumulate over micro-batches and step. False: not finite, weights and optimiser state are as before."""
        rows = [data.rows[i] for i in chosen]
        counts = TokenCounts(
            tokens=int(sum_over_ranks(sum(row.n_trained for row in rows))),
            sequences=int(sum_over_ranks(len(rows))),
            max_tokens=self.spec.max_response_tokens,
        )
        total = 0.0
        for batch in self._micro_batches(rows):
            scores = self._forward(self.model, batch, self._objective.entropy)
            inputs = data.inputs([chosen[i] for i in batch.rows], self.model.device)
            loss = self._objective(scores, inputs, counts, tally, first_step=first_step)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        total = sum_over_ranks(total)
        norm = clip_gradients(self.model.parameters(), self.spec.policy.grad_clip)
        finite = math.isfinite(total) and math.isfinite(norm)
        if finite:
            self.optimizer.step()
            tally.number("train/loss", total)
            tally.number("train/grad_norm", norm)
        self.optimizer.zero_grad(set_to_none=True)
        self._count_bad(finite, total, norm, step, rows)
        return finite

    def _count_bad(self, finite: bool, loss: float, norm: float, step: int, rows: Sequence[Row]) -> None:
        if finite:
            self.bad_steps = 0
            return
        self.bad_steps += 1
        tasks = sorted({row.task_id for row in rows})
        what = f"step {step}: loss {loss}, gradient norm {norm}"
        logger.error("%s: optimiser step skipped, weights unchanged; %d tasks, first %s", what, len(tasks), tasks[:3])
        if self.bad_steps >= self.spec.train.max_bad_steps:
            raise TrainingDiverged(
                f"{what}: not finite {self.bad_steps} times in a row (train.max_bad_steps="
                f"{self.spec.train.max_bad_steps}); the weights are those of the last good step. Lower policy.lr or "
                "policy.grad_clip, and look at the rollouts of this step"
            )

    def _minibatches(self, rows: Sequence[Row], step: int) -> list[list[int]]:
        """Indices of every optimiser step of this step, over all epochs. Shuffled by (seed, step, epoch)."""
        train = self.spec.train
        out: list[list[int]] = []
        for epoch in range(train.epochs):
            order = list(range(len(rows)))
            if train.minibatches > 1:
                Random(f"minibatches:{self.spec.seed}:{step}:{epoch}").shuffle(order)
            cuts = [len(rows) * i // train.minibatches for i in range(train.minibatches + 1)]
            out.extend(order[a:b] for a, b in pairwise(cuts) if b > a)
        return out

    def _old_logprobs(
        self, rows: Sequence[Row], given: Sequence[Floats] | None, *, n_steps: int
    ) -> Sequence[Floats] | None:
        if given is not None:
            return given
        if self.spec.train.old_logprobs is OldLogprobs.ENGINE:
            return [row.engine_logprobs for row in rows]
        return None if n_steps <= 1 else self.logprobs(rows)

    def _ref_logprobs(self, rows: Sequence[Row], given: Sequence[Floats] | None) -> Sequence[Floats] | None:
        return self.reference_logprobs(rows) if given is None and self.reference is not None else given

    def _score(
        self, model: PreTrainedModel, rows: Sequence[Row], entropy: Entropy
    ) -> tuple[list[Floats], list[Floats]]:
        """Log-probabilities and entropies in the rows' order, without gradients."""
        logprobs, entropies = [_zeros(row) for row in rows], [_zeros(row) for row in rows]
        with torch.no_grad():
            for batch in self._micro_batches(rows):
                scores = self._forward(model, batch, entropy)
                _spread(scores.logprobs, batch, logprobs)
                if scores.entropies is not None:
                    _spread(scores.entropies, batch, entropies)
        return logprobs, entropies

    def _micro_batches(self, rows: Sequence[Row]) -> list[MicroBatch]:
        batches = micro_batches(rows, budget=self.spec.policy.max_microbatch_tokens, cost=self._cost)
        return [batch.to(self.model.device) for batch in batches]

    def _forward(self, model: PreTrainedModel, batch: MicroBatch, entropy: Entropy) -> TokenScores:
        mixed = self.spec.model.dtype is Dtype.BFLOAT16
        with torch.autocast(self.model.device.type, torch.bfloat16, enabled=mixed):
            return score_tokens(model, batch, self.spec.temperature, entropy)


def _zeros(row: Row) -> Floats:
    return np.zeros(len(row.response_ids), np.float32)


def _spread(values: Tensor, batch: MicroBatch, out: list[Floats]) -> None:
    for i, piece in zip(batch.rows, torch.split(values.cpu(), list(batch.lengths)), strict=True):
        out[i] = piece.numpy().copy()
