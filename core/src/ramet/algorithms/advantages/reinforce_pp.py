"""REINFORCE++ (Hu et al., arXiv 2501.03262): the scale is the complete step's, not the group's.

    A_t = whitened over the step's sampled tokens: sum_{l >= 0} gamma^l r_{t+l}        `reinforce_pp`
    A_i = whitened over the step's sampled tokens: s_i - mean of its group             `reinforce_pp_baseline`

The first has its KL penalty in the rewards of tokens: `train.kl_estimator=k1-reward`. A time step is a sampled token
(`steps`). With `skip_inserted=false` the sum ends at the next inserted token, as in the released code, where no reward
reaches tokens before a tool result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ramet.algorithms.advantages.config import ReinforcePpConfig
from ramet.algorithms.advantages.groups import without_spread
from ramet.algorithms.advantages.steps import TimeSteps, discounted_sums, rewards_at_the_end
from ramet.algorithms.advantages.whitening import whiten
from ramet.helpers.group_scores import group_statistics, rollout_scores
from ramet.types import AdvantageInputs, AdvantageOutput, Need


class ReinforcePp:
    """Advantage estimator `reinforce_pp`."""

    needs: frozenset[Need] = frozenset()
    reads_threads = True
    min_group = 1  # the baseline is not the group's
    discounted = True

    def __init__(self, config: ReinforcePpConfig) -> None:
        self.config = config

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        returns = self._returns(batch) if self.config.skip_inserted else self._returns_within_runs(batch)
        return AdvantageOutput(advantages=whiten(returns, batch.mask))

    def _returns(self, batch: AdvantageInputs) -> Tensor:
        """`[N, T]` float64, arbitrary outside the mask."""
        steps = TimeSteps.of(batch.mask)
        rewards = torch.zeros(batch.mask.shape, dtype=torch.float64, device=batch.mask.device)
        steps.add_rewards(rewards, batch.rewards, batch.token_rewards)
        return discounted_sums(rewards, self.config.gamma).gather(1, steps.step)

    def _returns_within_runs(self, batch: AdvantageInputs) -> Tensor:
        """Return what the released code has: the sum from each token to the end of its run of sampled tokens."""
        mask, gamma = batch.mask, self.config.gamma
        rewards = rewards_at_the_end(mask, batch.rewards)
        if batch.token_rewards is not None:
            rewards = rewards + batch.token_rewards.double()
        sums = discounted_sums(rewards, gamma)
        # [N, T]: the first inserted position from here on, or T; the sum from there on is taken out.
        length = mask.shape[1]
        position = torch.arange(length, device=mask.device)
        end = torch.where(mask, length, position).flip(1).cummin(1).values.flip(1) if length else mask.long()
        beyond = torch.nn.functional.pad(sums, (0, 1)).gather(1, end)
        return sums - beyond * gamma ** (end - position).double()


class ReinforcePpBaseline:
    """Advantage estimator `reinforce_pp_baseline`."""

    needs: frozenset[Need] = frozenset()
    reads_threads = True

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        scores = rollout_scores(batch)
        group = group_statistics(scores, batch.group_ids)
        centred = (scores - group.mean)[:, None].expand(batch.mask.shape)
        return AdvantageOutput(advantages=whiten(centred, batch.mask), metrics=without_spread(group))
