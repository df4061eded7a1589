"""The loss of one micro-batch: policy loss, KL to the reference and entropy bonus, aggregated by global counts.

    L = sum_t w_t (rho_t * policy_loss_t + kl_coef * kl_t - entropy_coef * H_t)

w_t comes from `train.loss_aggregation`, the counts of the complete optimiser step and the weights that an estimator
gives tokens; rho_t is the off-policy weight. With `train.kl_estimator=k1-reward` the KL is in the advantages instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace

import numpy as np
import torch
from torch import Tensor

from ramet.algorithms.aggregation import TokenCounts, aggregate, token_weights
from ramet.algorithms.kl import kl_estimate
from ramet.algorithms.logprobs import Entropy
from ramet.algorithms.offpolicy import MASKS, OffPolicy, off_policy_weights
from ramet.algorithms.ratio import clamped, ratio_of
from ramet.config.schema import OldLogprobs
from ramet.errors import PluginError
from ramet.plugins import origin
from ramet.plugins.output_checks import loss_problem
from ramet.plugins.plugin_code import boundary, defined_at
from ramet.policy.batching.packing import MicroBatch
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.host_memory import sent
from ramet.policy.logprob_model import TokenLogprobs
from ramet.policy.metric_accumulator import MetricAccumulator
from ramet.policy.model_trainer import ModelTrainer, OptimizerStep
from ramet.policy.spec import PolicySpec
from ramet.types import AdvantageInputs, LossInputs, LossOutput, Need


class Objective:
    """Computes the loss of the micro-batches of one training step, and adds to the metrics."""

    def __init__(self, spec: PolicySpec, policy: ModelTrainer, batch: TrainBatch, metrics: MetricAccumulator) -> None:
        self._spec = spec
        self._policy = policy
        self._batch = batch
        self._metrics = metrics
        self._n_trained = [batch.n_trained(i) for i in range(len(batch.rows))]
        self._n_by_rollout = [sum(self._n_trained[i] for i in rows) for rows in batch.by_rollout()]
        # Entropies are always reported, and differentiated only if the loss uses them.
        needed = Need.ENTROPY in spec.policy_loss.needs or spec.train.entropy_coef != 0
        self._entropy = Entropy.GRADIENT if needed else Entropy.DETACHED

    def __call__(self, micro_batch: MicroBatch, rows: Sequence[int], step: OptimizerStep) -> Tensor:
        """This micro-batch's part of the optimiser step's loss, a scalar with gradient. All tensors are `[T]`."""
        spec, train, loss = self._spec, self._spec.train, self._spec.policy_loss
        policy: TokenLogprobs = self._policy.forward(micro_batch, spec.temperature, self._entropy)
        if not rows:
            return policy.logprobs.sum()  # of no tokens: 0, with a gradient of 0 for every parameter
        tokens, trained = self._batch.loss_inputs(rows, policy.logprobs, policy.entropies), micro_batch.response
        # The policy's loss. A loss gets only the inputs of its `needs`, since others cost a pass. It may overflow on
        # tokens outside the mask; without a gradient there, 0 * inf cannot reach the weights.
        inputs = replace(
            tokens,
            logprobs=torch.where(tokens.mask, tokens.logprobs, tokens.logprobs.detach()),
            entropies=tokens.entropies if Need.ENTROPY in loss.needs else None,
            ref_logprobs=tokens.ref_logprobs if Need.REFERENCE in loss.needs else None,
        )
        name = f"policy loss {origin(loss)}"
        # Memory is short: the caller names the settings that help.
        with unchanged(inputs, name), boundary(name, "policy_loss", passes=(torch.OutOfMemoryError,)):
            output = loss(inputs)
        problem = loss_problem(output, inputs)
        if problem is not None:
            raise PluginError(f"{name}: {problem}{defined_at(loss)}")
        off_policy = off_policy_weights(tokens, train)
        per_token = output.per_token * off_policy.weight  # rho_t * policy_loss_t
        # KL and entropies are reported also with a coefficient of 0.
        if tokens.ref_logprobs is not None:
            kl = kl_estimate(tokens.logprobs, tokens.ref_logprobs, train.kl_estimator)
            self._metrics.token_mean("train/kl_reference", kl, trained)
            if spec.kl_in_loss:
                per_token = per_token + self._batch.kl_coef * kl
        if tokens.entropies is not None:
            self._metrics.token_mean("train/entropy", tokens.entropies, trained)
            if train.entropy_coef:
                per_token = per_token - train.entropy_coef * tokens.entropies
        self._report(tokens, trained, output, off_policy, step)
        counts = TokenCounts(
            tokens=sum(self._n_trained[i] for i in step.rows),
            rollouts=len({self._batch.rollout_of(i) for i in step.rows}),
            max_tokens=spec.max_response_tokens,
        )
        given_weights = self._batch.token_weights(rows, tokens.mask.device)
        weights = token_weights(
            train.loss_aggregation, tokens.mask, tokens.rollout_ids, counts, given_weights, self._elsewhere(rows)
        )
        return aggregate(per_token, weights)

    def _elsewhere(self, rows: Sequence[int]) -> Tensor | None:
        """Return how much is trained of each of the micro-batch's rollouts in threads that are not in it; None: 0."""
        if self._batch.rollouts is None:
            return None
        here = self._batch.rollout_numbers(rows)
        complete = {self._batch.rollout_of(i): self._n_by_rollout[self._batch.rollout_of(i)] for i in rows}
        counted = np.bincount(here, [self._n_trained[i] for i in rows])
        return sent(torch.tensor(list(complete.values()) - counted, dtype=torch.float32), self._policy.device)

    def _report(
        self, tokens: LossInputs, trained: Tensor, output: LossOutput, off_policy: OffPolicy, step: OptimizerStep
    ) -> None:
        """The loss's own metrics, the off-policy weights, the tails of the ratio and the gap to the engine.

        Over the tokens at the positions `trained`.
        """
        metrics, train = self._metrics, self._spec.train
        logprobs, old, engine = tokens.logprobs.detach(), tokens.old_logprobs, tokens.engine_logprobs
        for name, values in output.metrics.items():
            metrics.token_mean(f"train/{name}", values, trained)
        metrics.token_mean("train/tis_weight", off_policy.weight, trained)
        metrics.token_mean("train/tis_truncated", off_policy.truncated, trained)
        metrics.token_mean("train/tis_clamped", off_policy.clamped, trained)
        metrics.effective_share("train/tis_effective", off_policy.weight, trained)
        metrics.effective_share("train/ratio_effective", ratio_of(logprobs, engine), trained)  # pi / mu
        if train.off_policy.keys() & MASKS:
            metrics.token_mean("train/tis_left_out", off_policy.left_out, trained)
        metrics.token_percentiles("train/ratio", ratio_of(logprobs, old), trained)
        metrics.token_mean("train/ratio_clamped", clamped(logprobs, old), trained)
        # |log pi_old - log mu|. If pi_old is mu, the policy before its first optimiser step is compared instead.
        if train.old_logprobs is not OldLogprobs.ENGINE or step.is_first:
            trainer = logprobs if train.old_logprobs is OldLogprobs.ENGINE else old
            gap = (trainer - engine).abs()
            metrics.token_mean("train/engine_gap_mean", gap, trained)
            metrics.token_max("train/engine_gap_max", gap, trained)


@contextmanager
def unchanged(batch: LossInputs | AdvantageInputs, who: str) -> Iterator[None]:
    """Raise `PluginError` if the block changes a tensor of `batch` in place.

    The core continues with the same tensors, and no other check would show the change. torch counts the changes of a
    tensor itself, so this costs nothing.
    """

    def versions() -> dict[str, int]:
        values = ((field.name, getattr(batch, field.name)) for field in fields(batch))
        return {name: value._version for name, value in values if isinstance(value, Tensor)}

    before = versions()
    yield
    changed = [name for name, version in versions().items() if version != before[name]]
    if changed:
        raise PluginError(f"{who} changed its inputs in place: {', '.join(changed)}; work on copies")
