"""Advantages of rollouts that share tokens (arXiv 2507.19849, §3.2 and appendix D.1).

    A_i = (R_i - mean R) / (std R + eps)                   a rollout's, relative to its group
    soft: every token of rollout i has A_i                 GRPO on the flattened rollouts; the paper's default
    hard: a token that d rollouts share has sum(A_i) / d
    own:  a token has the A_i of the rollout that sampled it, and weighs 0 in forks

With a token-mean loss and unchanged weights soft and hard have the same gradient; they differ where a loss averages
over sequences, and once the ratio leaves the clip range. `multiplicity` weighs a shared token down, in each of its d
copies by 1 / d (`one`) or 1 / sqrt(d) (`sqrt`, as TreeRL, arXiv 2506.11902). Together the copies count 1 or sqrt(d) in
the loss, its KL and entropy terms and its denominators. `one` trains as if a shared prefix were stored once.

`own` trains a fork from its fork point on, after APPO (arXiv 2606.12384), which keeps what a branch repeats out of the
loss. The prefix then learns from the outcome of its own rollout only; if that one is masked, it is not trained.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ramet import AdvantageInputs, AdvantageOutput, Need, group_statistics, rollout_scores
from ramet_arpo.config import ArpoAdvantageConfig, Attribution, Multiplicity

POWER = {Multiplicity.ALL: 0.0, Multiplicity.SQRT: 0.5, Multiplicity.ONE: 1.0}


class ArpoAdvantage:
    """The advantage estimator `arpo`."""

    needs: frozenset[Need] = frozenset()
    reads_threads = True
    scope: Literal["batch", "group"] = "group"

    def __init__(self, config: ArpoAdvantageConfig) -> None:
        self.config = config

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        scores = rollout_scores(batch)
        group = group_statistics(scores, batch.group_ids)
        of_rollouts = group.relative(scores, normalize_std=self.config.normalize_std, eps=self.config.eps)
        advantages = of_rollouts[:, None].expand(batch.mask.shape)
        _, node = torch.unique(batch.node_ids, return_inverse=True)
        sharers = _sums(torch.ones_like(advantages) * batch.mask, node)
        if self.config.attribution is Attribution.HARD:
            advantages = _sums(advantages * batch.mask, node) / sharers.clamp(min=1)
        power = POWER[self.config.multiplicity]
        weights = None if power == 0 else sharers.clamp(min=1).float() ** -power
        if self.config.attribution is Attribution.OWN:
            position = torch.arange(batch.mask.shape[1], device=batch.mask.device)
            weights = (position >= batch.fork_position[:, None]).float()
        shared = (sharers > 1) & batch.mask
        share = float(shared.sum() / batch.mask.sum().clamp(min=1))
        return AdvantageOutput(
            advantages=(advantages * batch.mask).float(),
            weights=weights,
            metrics={"advantage/shared_token_share": share},
        )


def _sums(values: Tensor, index: Tensor) -> Tensor:
    """Return, in the shape of `values`, at each place the sum over all places with the same `index`."""
    totals = values.new_zeros(int(index.max()) + 1 if index.numel() else 0)
    return totals.index_add(0, index.flatten(), values.flatten())[index]
