"""The critic: a value model, and the loss by which it learns the returns that an estimator gave (`Need.VALUES`).

The value model is the policy's architecture and first weights, with one number per token instead of V logits. Its head
begins at 0, so that the first values are 0 and the first advantages plain returns; noise would only have to be
unlearned. Weights are float32 or gathered in bfloat16 as the policy's are, but the head multiplies in float32: three
digits are too few for a return. Packing, number types, optimiser, schedule, mini-batches and checkpoints are the
policy's (`model_trainer`), with the critic's own learning rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.functional import linear
from transformers import PreTrainedModel

from ramet.algorithms.aggregation import aggregate
from ramet.algorithms.value_loss import value_loss
from ramet.policy.batching.gather import gathered
from ramet.policy.batching.packing import MicroBatch
from ramet.policy.batching.train_batch import TrainBatch, joined
from ramet.policy.distributed.ulysses import join_values, ulysses_states
from ramet.policy.logprob_model import hidden_states
from ramet.policy.metric_accumulator import MetricAccumulator
from ramet.policy.model_trainer import ModelTrainer, OptimizerStep


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
        # Values [n] of the trained tokens; with Ulysses each rank computes the values [m] of its own positions.
        if self.group is None:
            values = self._values(gathered(hidden_states(self.model, batch).flatten(0, 1), batch.predict))
        else:
            states, indices = ulysses_states(
                self.model, batch.input_ids, batch.position_ids, batch.predict, self.group, batch.attention
            )
            values = join_values(self._values(states), indices, len(batch.targets), self.group)
        return batch.on_responses(values)  # [n] -> [T]

    def _values(self, states: Tensor) -> Tensor:
        """`[n]` float32 from hidden states `[n, H]`."""
        head = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        with torch.autocast(states.device.type, enabled=False):
            return linear(states.float(), head.weight.float()).squeeze(-1)


class ValueObjective:
    """The loss of a micro-batch: of V towards the returns of the batch, which its values must not leave too far."""

    def __init__(self, critic: ModelTrainer, batch: TrainBatch, metrics: MetricAccumulator, *, clip: float) -> None:
        """`clip`: as of `value_loss`. Raises `ValueError` for a batch without returns or values."""
        if batch.returns is None or batch.values is None:
            raise ValueError("a critic is trained on returns and on its values before the update; the batch lacks them")
        self._critic = critic
        self._batch = batch
        self._returns, self._old_values = batch.returns, batch.values
        self._metrics = metrics
        self._clip = clip

    def __call__(self, micro_batch: MicroBatch, rows: Sequence[int], step: OptimizerStep) -> Tensor:
        """The mean over the optimiser step's sampled tokens, this micro-batch's part."""
        values: Tensor = self._critic.forward(micro_batch)
        if not rows:
            return values.sum()  # of no tokens: 0, with a gradient of 0 for every parameter
        batch_rows = [self._batch.rows[i] for i in rows]
        mask = joined([row.mask for row in batch_rows], values.device)
        old_values = joined([self._old_values[i] for i in rows], values.device)
        returns = joined([self._returns[i] for i in rows], values.device)
        loss = value_loss(values, old_values, returns, self._clip)
        self._metrics.token_mean("critic/clip_fraction", loss.clipped, micro_batch.response)
        n_tokens = sum(self._batch.rows[i].n_trained for i in step.rows)
        return aggregate(loss.per_token, mask.float()) / max(n_tokens, 1)


def explained_variance(batch: TrainBatch) -> float:
    """1: the values are the returns, 0: no better than their mean. Also 0 if all returns are the same."""
    if not (batch.rows and batch.returns and batch.values):
        return 0.0
    mask = np.concatenate([row.mask for row in batch.rows])
    returns = np.concatenate(batch.returns)[mask].astype(np.float64)
    errors = returns - np.concatenate(batch.values)[mask]
    variance = returns.var() if len(returns) else 0.0
    return float(1 - errors.var() / variance) if variance > 0 else 0.0


def _zero_head(model: PreTrainedModel) -> nn.Linear:
    device = "cpu" if model.device.type == "meta" else model.device  # it has values from now on, from no file
    head = nn.Linear(model.config.hidden_size, 1, bias=False, device=device)
    nn.init.zeros_(head.weight)
    return head
