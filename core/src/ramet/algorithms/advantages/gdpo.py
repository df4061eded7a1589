"""GDPO: each reward is normalised within the group before they are weighed and added (arXiv 2601.05242, §3.1).

    A_k,i = (r_k,i - mean_k) / (std_k + eps)        mean and std (n - 1) of reward k over the group
    A_i   = sum_k w_k A_k,i / (std of that sum over all rollouts of the step + eps)

GRPO adds first and divides by the spread of the sum, in which a reward of small spread is lost, and rollouts of
different merits get the same advantage. The paper also takes off the step's mean before it divides: that mean is 0, as
the mean of every A_k over its group, so it is left out here.

A reward that does not apply to a rollout (NaN) adds 0 to it and is in no statistic of it. Token rewards are not a part
of `reward_parts`; their sum is one more reward of weight 1, since they are weighed already.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ramet.algorithms.advantages.config import GdpoConfig
from ramet.algorithms.advantages.groups import over_tokens
from ramet.errors import ConfigError
from ramet.helpers.group_scores import group_statistics
from ramet.types import AdvantageInputs, AdvantageOutput, Need


class Gdpo:
    """Advantage estimator `gdpo`. Raises `ConfigError` for a weight of an unknown reward."""

    needs: frozenset[Need] = frozenset()
    reads_threads = True
    scope: Literal["batch", "group"] = "batch"

    def __init__(self, config: GdpoConfig) -> None:
        self.config = config

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        total = torch.zeros(len(batch.rewards), dtype=torch.float64, device=batch.rewards.device)
        spread = torch.zeros_like(total, dtype=torch.bool)
        for name, weight in self._weights(batch).items():
            part = self._normalised(batch.reward_parts[name], batch.group_ids)
            total, spread = total + weight * part, spread | (part != 0)
        if batch.token_rewards is not None:
            part = self._normalised(batch.token_rewards.double().sum(1), batch.group_ids)
            total, spread = total + part, spread | (part != 0)
        if self.config.batch_std and len(total) > 1:
            total = total / (total.std() + self.config.eps)
        metrics = {"advantage/rows_without_spread": float((~spread).double().mean()) if len(total) else 0.0}
        return AdvantageOutput(advantages=over_tokens(total, batch.mask), metrics=metrics)

    def _weights(self, batch: AdvantageInputs) -> dict[str, float]:
        """Return the weight of each reward or part that some rollout of the step has."""
        there = batch.reward_parts
        if self.config.weights is None:
            return {name: batch.reward_weights.get(name, 1.0) for name in there if "/" not in name}
        known = {*there, *batch.reward_weights}
        for name in self.config.weights:
            if name not in known and name.partition("/")[0] not in batch.reward_weights:
                raise ConfigError(
                    f"advantage.params.weights: no reward {name!r}; there are: {', '.join(sorted(known))}"
                )
        return {name: weight for name, weight in self.config.weights.items() if name in there}

    def _normalised(self, part: Tensor, group_ids: Tensor) -> Tensor:
        """`[N]` float64: the part relative to its group, 0 where it does not apply."""
        given = ~part.isnan()
        statistics = group_statistics(part[given], group_ids[given])
        relative = statistics.relative(part[given], normalize_std=True, eps=self.config.eps)
        relative = torch.where(statistics.size > 1, relative, 0.0)  # nothing to compare it with
        return torch.zeros(part.shape, dtype=torch.float64, device=part.device).masked_scatter(given, relative)
