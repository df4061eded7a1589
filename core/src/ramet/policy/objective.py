"""The loss of one micro-batch: policy loss, KL to the reference and entropy bonus, aggregated by global counts.

    L = sum_t w_t (rho_t * policy_loss_t + kl_coef * kl_t - entropy_coef * H_t)

w_t comes from `train.loss_aggregation` and the counts of the whole optimiser step; rho_t is the off-policy weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ramet.algorithms.aggregation import TokenCounts, aggregate, token_weights
from ramet.algorithms.kl import kl_estimate
from ramet.algorithms.logprobs import Entropy
from ramet.algorithms.offpolicy import truncated_weights
from ramet.algorithms.ratio import clamped, ratio_of
from ramet.config.schema import OldLogprobs
from ramet.errors import ConfigError, PluginError, RametError
from ramet.output_checks import loss_problem
from ramet.plugin_code import defined_at, failed, named
from ramet.plugins import origin
from ramet.policy.batching.train_batch import TokenInputs
from ramet.policy.logprob_model import TokenScores
from ramet.policy.metric_accumulator import MetricAccumulator
from ramet.policy.mutation_guard import unchanged
from ramet.policy.spec import PolicySpec
from ramet.types import LossInputs, LossOutput, Need, PolicyLoss


class Objective:
    """Computes the loss of a micro-batch and adds what it saw to a tally."""

    def __init__(self, spec: PolicySpec) -> None:
        self._spec = spec
        self._silent: bool | None = None  # unknown until it is asked for

    @property
    def entropy(self) -> Entropy:
        """Entropies are always reported, and differentiated only if the loss uses them."""
        needed = Need.ENTROPY in self._spec.policy_loss.needs or self._spec.train.entropy_coef != 0
        return Entropy.GRADIENT if needed else Entropy.DETACHED

    def is_silent_without_advantages(self, device: torch.device) -> bool:
        """Whether a row whose advantages are all 0 adds nothing to loss and gradient, so that it need not be computed.

        Not if a term besides the policy loss asks for it. The loss itself is tried, once, on a small batch.
        """
        train, loss = self._spec.train, self._spec.policy_loss
        if train.kl_coef or train.entropy_coef or loss.needs & {Need.ENTROPY, Need.REFERENCE}:
            return False
        if self._silent is None:
            self._silent = _is_silent(loss, device)
        return self._silent

    def __call__(
        self,
        scores: TokenScores,
        inputs: TokenInputs,
        counts: TokenCounts,
        tally: MetricAccumulator,
        *,
        first_step: bool,
    ) -> Tensor:
        """This micro-batch's share of the optimiser step's loss, with gradient."""
        train = self._spec.train
        old = scores.logprobs.detach() if inputs.old_logprobs is None else inputs.old_logprobs
        output = self._policy_loss(scores, inputs, old)
        off_policy = truncated_weights(old, inputs.engine_logprobs, train.tis_cap)
        per_token = output.per_token * off_policy.weight
        if inputs.ref_logprobs is not None:
            kl = kl_estimate(scores.logprobs, inputs.ref_logprobs, train.kl_estimator)
            tally.tokens("train/kl_reference", kl, scores.mask)
            per_token = per_token + train.kl_coef * kl if train.kl_coef else per_token
        if scores.entropies is not None:
            tally.tokens("train/entropy", scores.entropies, scores.mask)
            if train.entropy_coef:
                per_token = per_token - train.entropy_coef * scores.entropies
        for name, values in output.metrics.items():
            tally.tokens(f"train/{name}", values, scores.mask)
        tally.tokens("train/tis_weight", off_policy.weight, scores.mask)
        tally.tokens("train/tis_truncated", off_policy.truncated, scores.mask)
        tally.tokens("train/tis_clamped", off_policy.clamped, scores.mask)
        tally.tails("train/ratio", ratio_of(scores.logprobs.detach(), old), scores.mask)
        tally.tokens("train/ratio_clamped", clamped(scores.logprobs, old), scores.mask)
        self._report_gap(scores, inputs, old, tally, first_step)
        weights = token_weights(train.loss_aggregation, scores.mask, inputs.sequence_ids, counts)
        return aggregate(per_token, weights)

    def _policy_loss(self, scores: TokenScores, inputs: TokenInputs, old: Tensor) -> LossOutput:
        """What the loss says of this micro-batch. It gets what it needs and nothing else that costs a pass."""
        loss = self._spec.policy_loss
        # A loss may overflow on tokens outside the mask; without a gradient there, 0 * inf cannot reach the weights.
        trained = torch.where(scores.mask, scores.logprobs, scores.logprobs.detach())
        batch = LossInputs(
            logprobs=trained,
            old_logprobs=old,
            engine_logprobs=inputs.engine_logprobs,
            advantages=inputs.advantages,
            mask=scores.mask,
            sequence_ids=inputs.sequence_ids,
            group_ids=inputs.group_ids,
            turn_ids=inputs.turn_ids,
            policy_versions=inputs.policy_versions,
            entropies=scores.entropies if Need.ENTROPY in loss.needs else None,
            ref_logprobs=inputs.ref_logprobs if Need.REFERENCE in loss.needs else None,
            returns=inputs.returns,
        )
        name = f"policy loss {origin(loss)}"
        with unchanged(batch, name):
            output = _call(loss, batch, name)
        problem = loss_problem(output, batch)
        if problem is not None:
            raise PluginError(f"{name}: {problem}{defined_at(loss)}")
        return output

    def _report_gap(
        self, scores: TokenScores, inputs: TokenInputs, old: Tensor, tally: MetricAccumulator, first_step: bool
    ) -> None:
        """|log pi_old - log mu|. Where pi_old is mu, the policy stands in for it before its first optimiser step."""
        trainer = old
        if self._spec.train.old_logprobs is OldLogprobs.ENGINE:
            if not first_step:
                return
            trainer = scores.logprobs.detach()
        gap = (trainer - inputs.engine_logprobs).abs()
        tally.tokens("train/engine_gap_mean", gap, scores.mask)
        tally.largest("train/engine_gap_max", gap, scores.mask)


def _call(loss: PolicyLoss, batch: LossInputs, name: str) -> LossOutput:
    try:
        return loss(batch)
    except ConfigError as error:
        raise named(error, name, "policy_loss") from error
    except (RametError, torch.OutOfMemoryError):  # memory is short: who calls this says which settings help
        raise
    except Exception as error:
        raise failed(error, name) from error


def _is_silent(loss: PolicyLoss, device: torch.device) -> bool:
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
    output = _call(loss, batch, f"policy loss {origin(loss)}")
    if loss_problem(output, batch) is not None:
        return False  # the update says what it is
    per_token = output.per_token
    (gradient,) = torch.autograd.grad(per_token[batch.mask].sum(), [logprobs], allow_unused=True)
    return not per_token[batch.mask].count_nonzero() and (gradient is None or not gradient.count_nonzero())
