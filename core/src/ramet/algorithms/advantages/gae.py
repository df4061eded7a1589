"""GAE: generalized advantage estimation (arXiv 1506.02438, eq. 16) over the sampled tokens of a rollout.

    delta_t = r_t + gamma V_{t+1} - V_t        A_t = sum_l (gamma lam)^l delta_{t+l}        R_t = A_t + V_t

V_{t+1} is the value of the next *sampled* token (`steps`), and 0 after the last one. With `skip_inserted=false` time
passes in tool results as well, as in the released code, whose recursion runs over every position. They are discounted,
and their value is 0, since the critic is asked only for sampled tokens. Without inserted tokens both agree.

Shapes: N rollouts, T response tokens, K time steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ramet.algorithms.advantages.config import GaeConfig
from ramet.algorithms.advantages.steps import TimeSteps, discounted_sums, rewards_at_the_end
from ramet.algorithms.advantages.whitening import row_blocks, whiten_in_place
from ramet.types import AdvantageInputs, AdvantageOutput, CriticOptions, Need


class Gae:
    """Advantage estimator `gae`."""

    needs: frozenset[Need] = frozenset({Need.VALUES})
    reads_threads = True
    min_group = 1  # the baseline is not the group's
    discounted = True

    def __init__(self, config: GaeConfig) -> None:
        self.config = config

    @property
    def critic(self) -> CriticOptions:
        config = self.config
        return CriticOptions(lr=config.critic_lr, warmup_steps=config.critic_warmup_steps, value_clip=config.value_clip)

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        mask, values = batch.mask, batch.values
        assert values is not None  # the core fills what `needs` names
        advantages, returns = torch.empty_like(values), torch.empty_like(values)
        # [N, T] in blocks of rows, in float64. Sums over the mask: tokens, A, A^2, V and R.
        sums = torch.zeros(5, dtype=torch.float64, device=mask.device)
        for rows in row_blocks(mask):
            sampled = mask[rows].double()
            block_values = values[rows].double().mul_(sampled)  # V, 0 on inserted tokens and padding
            token_rewards = None if batch.token_rewards is None else batch.token_rewards[rows]
            block_advantages = self._advantages(mask[rows], block_values, batch.rewards[rows], token_rewards).mul_(
                sampled
            )
            advantages[rows] = block_advantages
            total, squares = block_advantages.sum(), torch.linalg.vector_norm(block_advantages) ** 2
            returns[rows] = block_advantages.add_(block_values)  # R = A + V, in the memory of A
            sums += torch.stack([sampled.sum(), total, squares, block_values.sum(), block_advantages.sum()])
        if self.config.whiten:
            whiten_in_place(advantages, mask, *sums[:3])
        n, _, _, sum_of_values, sum_of_returns = sums.tolist()
        metrics = {"critic/value_mean": sum_of_values / max(n, 1), "critic/return_mean": sum_of_returns / max(n, 1)}
        return AdvantageOutput(advantages=advantages, returns=returns, metrics=metrics)

    def _advantages(self, mask: Tensor, values: Tensor, rewards: Tensor, token_rewards: Tensor | None) -> Tensor:
        """`[N, T]` float64, arbitrary outside the mask; `values` `[N, T]` are 0 there, `rewards` are `[N]`."""
        gamma, discount = self.config.gamma, self.config.gamma * self.config.lam
        if not self.config.skip_inserted:
            deltas = _deltas(values, gamma)
            if token_rewards is not None:
                deltas += token_rewards.double()
            deltas += rewards_at_the_end(mask, rewards)
            return discounted_sums(deltas, discount)
        # Sampled tokens move to the front, so that column k is time step k; inserted tokens add their value, 0.
        steps = TimeSteps.of(mask)
        deltas = _deltas(torch.zeros_like(values).scatter_add_(1, steps.step, values), gamma)
        steps.add_rewards(deltas, rewards, token_rewards)
        # Back from time steps to tokens: each reads the sum at its step.
        return discounted_sums(deltas, discount).gather(1, steps.step)


def _deltas(values: Tensor, gamma: float) -> Tensor:
    """gamma V_{k+1} - V_k by column; after the last one V is 0."""
    deltas = values.neg()
    deltas[:, :-1].add_(values[:, 1:], alpha=gamma)
    return deltas
