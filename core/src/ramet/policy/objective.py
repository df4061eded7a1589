"""The loss of one micro-batch: policy loss, KL to the reference and entropy bonus, aggregated by global counts.

    L = sum_t w_t (rho_t * policy_loss_t + kl_coef * kl_t - entropy_coef * H_t)

w_t comes from `train.loss_aggregation`, the counts of the whole optimiser step and the weights that an estimator gives
tokens; rho_t is the off-policy weight. With
`train.kl_in=reward` the KL is in the advantages instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ramet.algorithms.aggregation import TokenCounts, aggregate, token_weights
from ramet.algorithms.kl import estimator_of, kl_estimate
from ramet.algorithms.logprobs import Entropy
from ramet.algorithms.offpolicy import SampledTokens, off_policy_masks, off_policy_weights
from ramet.algorithms.ratio import clamped, ratio_of
from ramet.config.schema import OldLogprobs
from ramet.errors import PluginError
from ramet.output_checks import loss_problem
from ramet.plugin_code import boundary, defined_at
from ramet.plugins import origin
from ramet.policy.batching.train_batch import TokenInputs
from ramet.policy.logprob_model import TokenLogprobs
from ramet.policy.metric_accumulator import MetricAccumulator
from ramet.policy.mutation_guard import unchanged
from ramet.policy.spec import PolicySpec
from ramet.types import LossInputs, LossOutput, Need, PolicyLoss


class Objective:
    """Computes the loss of a micro-batch and adds what it saw to the metrics."""

    def __init__(self, spec: PolicySpec) -> None:
        self._spec = spec
        self._zero_without_advantages: bool | None = None  # tried at the first question

    @property
    def entropy(self) -> Entropy:
        """Entropies are always reported, and differentiated only if the loss uses them."""
        needed = Need.ENTROPY in self._spec.policy_loss.needs or self._spec.train.entropy_coef != 0
        return Entropy.GRADIENT if needed else Entropy.DETACHED

    def is_zero_without_advantages(self, device: torch.device) -> bool:
        """Whether a row whose advantages are all 0 adds nothing to loss and gradient, so that it need not be computed.

        False if a term besides the policy loss uses it. The loss itself is tried, once, on a small batch.
        """
        train, loss = self._spec.train, self._spec.policy_loss
        if self._spec.kl_in_loss or train.entropy_coef or loss.needs & {Need.ENTROPY, Need.REFERENCE}:
            return False
        if self._zero_without_advantages is None:
            self._zero_without_advantages = _is_zero_without_advantages(loss, device)
        return self._zero_without_advantages

    def __call__(
        self,
        policy: TokenLogprobs,
        inputs: TokenInputs,
        counts: TokenCounts,
        metrics: MetricAccumulator,
        *,
        first_step: bool,
        kl_coef: float | None = None,
    ) -> Tensor:
        """This micro-batch's part of the optimiser step's loss, a scalar with gradient. All tensors are `[T]`.

        `policy` is pi, with gradient; `counts` are those of the whole optimiser step; `kl_coef` None is
        `train.kl_coef`.
        """
        train = self._spec.train
        # The three terms by token. KL and entropies are reported also with a coefficient of 0.
        old = policy.logprobs.detach() if inputs.old_logprobs is None else inputs.old_logprobs
        output = self._policy_loss(policy, inputs, old)
        tokens = SampledTokens(
            logprobs=policy.logprobs.detach(),
            old_logprobs=old,
            engine_logprobs=inputs.engine_logprobs,
            advantages=inputs.advantages,
            mask=policy.mask,
            sequence_ids=inputs.sequence_ids,
        )
        off_policy = off_policy_weights(tokens, train)
        per_token = output.per_token * off_policy.weight  # rho_t * policy_loss_t
        if inputs.ref_logprobs is not None:
            kl = kl_estimate(policy.logprobs, inputs.ref_logprobs, estimator_of(train))
            metrics.token_mean("train/kl_reference", kl, policy.mask)
            if self._spec.kl_in_loss:
                per_token = per_token + (train.kl_coef if kl_coef is None else kl_coef) * kl
        if policy.entropies is not None:
            metrics.token_mean("train/entropy", policy.entropies, policy.mask)
            if train.entropy_coef:
                per_token = per_token - train.entropy_coef * policy.entropies
        # The loss's own metrics, the off-policy weights and the tails of the ratio.
        for name, values in output.metrics.items():
            metrics.token_mean(f"train/{name}", values, policy.mask)
        metrics.token_mean("train/tis_weight", off_policy.weight, policy.mask)
        metrics.token_mean("train/tis_truncated", off_policy.truncated, policy.mask)
        metrics.token_mean("train/tis_clamped", off_policy.clamped, policy.mask)
        metrics.effective_share("train/tis_effective", off_policy.weight, policy.mask)
        importance = ratio_of(policy.logprobs.detach(), inputs.engine_logprobs)  # pi / mu
        metrics.effective_share("train/ratio_effective", importance, policy.mask)
        if off_policy_masks(train):
            metrics.token_mean("train/tis_left_out", off_policy.left_out, policy.mask)
        metrics.token_percentiles("train/ratio", ratio_of(policy.logprobs.detach(), old), policy.mask)
        metrics.token_mean("train/ratio_clamped", clamped(policy.logprobs, old), policy.mask)
        self._report_gap(policy, inputs, old, metrics, first_step)
        weights = token_weights(train.loss_aggregation, policy.mask, inputs.sequence_ids, counts, inputs.weights)
        return aggregate(per_token, weights)

    def _policy_loss(self, policy: TokenLogprobs, inputs: TokenInputs, old: Tensor) -> LossOutput:
        """The loss of this micro-batch, by token. It gets what it needs and nothing else that costs a pass."""
        loss = self._spec.policy_loss
        # A loss may overflow on tokens outside the mask; without a gradient there, 0 * inf cannot reach the weights.
        trained = torch.where(policy.mask, policy.logprobs, policy.logprobs.detach())
        batch = LossInputs(
            logprobs=trained,
            old_logprobs=old,
            engine_logprobs=inputs.engine_logprobs,
            advantages=inputs.advantages,
            mask=policy.mask,
            sequence_ids=inputs.sequence_ids,
            group_ids=inputs.group_ids,
            turn_ids=inputs.turn_ids,
            policy_versions=inputs.policy_versions,
            entropies=policy.entropies if Need.ENTROPY in loss.needs else None,
            ref_logprobs=inputs.ref_logprobs if Need.REFERENCE in loss.needs else None,
            returns=inputs.returns,
        )
        name = f"policy loss {origin(loss)}"
        with unchanged(batch, name):
            # Memory is short: the caller names the settings that help.
            with boundary(name, "policy_loss", passes=(torch.OutOfMemoryError,)):
                output = loss(batch)
        problem = loss_problem(output, batch)
        if problem is not None:
            raise PluginError(f"{name}: {problem}{defined_at(loss)}")
        return output

    def _report_gap(
        self, policy: TokenLogprobs, inputs: TokenInputs, old: Tensor, metrics: MetricAccumulator, first_step: bool
    ) -> None:
        """|log pi_old - log mu|. If pi_old is mu, the policy before its first optimiser step is compared instead."""
        trainer = old
        if self._spec.train.old_logprobs is OldLogprobs.ENGINE:
            if not first_step:
                return
            trainer = policy.logprobs.detach()
        gap = (trainer - inputs.engine_logprobs).abs()
        metrics.token_mean("train/engine_gap_mean", gap, policy.mask)
        metrics.token_max("train/engine_gap_max", gap, policy.mask)


def _is_zero_without_advantages(loss: PolicyLoss, device: torch.device) -> bool:
    """Whether the loss of two sequences without advantages is 0 and so is its gradient. They differ in all that a loss
    may look at: ratios far from 1, a large gap to the engine, groups, turns and policy versions of their own.
    """
    logprobs = torch.linspace(-12, -0.1, 8, device=device).requires_grad_()
    positions = torch.arange(8, device=device)
    batch = LossInputs(
        logprobs=logprobs,
        old_logprobs=logprobs.detach().flip(0),
        engine_logprobs=logprobs.detach().roll(3),
        advantages=torch.zeros(8, device=device),
        mask=positions % 4 != 2,
        sequence_ids=positions // 4,
        group_ids=positions // 4,
        turn_ids=positions % 4,
        policy_versions=positions,
    )
    with boundary(f"policy loss {origin(loss)}", "policy_loss"):
        output = loss(batch)
    if loss_problem(output, batch) is not None:
        return False  # the update reports it
    per_token = output.per_token
    (gradient,) = torch.autograd.grad(per_token[batch.mask].sum(), [logprobs], allow_unused=True)
    return not per_token[batch.mask].count_nonzero() and (gradient is None or not gradient.count_nonzero())
