"""GAE: generalized advantage estimation (arXiv 1506.02438, eq. 16) over the sampled tokens of a rollout.

    delta_t = r_t + gamma V_{t+1} - V_t        A_t = sum_l (gamma lam)^l delta_{t+l}        R_t = A_t + V_t

A time step is a *sampled* token: what a tool inserted is no action, so V_{t+1} is the value of the next sampled token
and a tool result is not discounted, however long. (The released code steps through tool results as well; without
inserted tokens both agree.) The value after the last token is 0. A rollout's reward is added at its last sampled token,
and a token reward on an inserted token at the action that led there: the last sampled token before it.

Nothing loops over time: the sum is computed in blocks of 32 steps, each a product with a matrix of powers of the
discount, and the sums at the blocks' first steps are the same problem again, 32 times shorter. No power is ever divided
by, so no discount can overflow.

Shapes: N rollouts, T response tokens, K time steps; K <= T, since only sampled tokens are steps.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ramet.algorithms.config import GaeConfig
from ramet.types import AdvantageInputs, AdvantageOutput, CriticOptions, Need

BLOCK = 32  # time steps
CACHED = 2**16  # numbers computed at once: with many more, allocating intermediate results takes as long as computing
VARIANCE_EPS = 1e-8


class Gae:
    """Advantage estimator `gae`."""

    needs: frozenset[Need] = frozenset({Need.VALUES})

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
        for rows in _row_blocks(mask):
            sampled = mask[rows].double()
            known = values[rows].double().mul_(sampled)  # V, 0 on inserted tokens and padding
            token_rewards = None if batch.token_rewards is None else batch.token_rewards[rows]
            found = self._advantages(mask[rows], known, batch.rewards[rows], token_rewards).mul_(sampled)
            advantages[rows] = found
            total, squares = found.sum(), torch.linalg.vector_norm(found) ** 2
            returns[rows] = found.add_(known)  # R = A + V, in the memory of A
            sums += torch.stack([sampled.sum(), total, squares, known.sum(), found.sum()])
        if self.config.whiten:
            _whiten(advantages, mask, *sums[:3])
        n, _, _, sum_of_values, sum_of_returns = sums.tolist()
        metrics = {"critic/value_mean": sum_of_values / max(n, 1), "critic/return_mean": sum_of_returns / max(n, 1)}
        return AdvantageOutput(advantages=advantages, returns=returns, metrics=metrics)

    def _advantages(self, mask: Tensor, values: Tensor, rewards: Tensor, token_rewards: Tensor | None) -> Tensor:
        """`[N, T]` float64, arbitrary outside the mask; `values` `[N, T]` are 0 there, `rewards` are `[N]`."""
        # step [N, T]: the time step of the last sampled token so far; begun [N, T]: whether there was one.
        step = mask.cumsum(1).sub_(1)
        begun, step = step >= 0, step.clamp_(min=0)
        # Sampled tokens move to the front, so that column k is time step k; inserted tokens add their value, 0.
        compact = torch.zeros_like(values).scatter_add_(1, step, values)
        # delta_k = gamma V_{k+1} - V_k; after a rollout's last step V is 0.
        deltas = compact.neg()
        deltas[:, :-1].add_(compact[:, 1:], alpha=self.config.gamma)
        # Token rewards at the last sampled token before them; those before the first one reward no action.
        if token_rewards is not None:
            deltas.scatter_add_(1, step, torch.where(begun, token_rewards, 0.0).double())
        # The rollout's reward at its last step, if it has any.
        deltas.scatter_add_(1, step[:, -1:], rewards.double()[:, None] * begun[:, -1:])
        # Back from time steps to tokens: each reads the sum at its step.
        return discounted_sums(deltas, self.config.gamma * self.config.lam).gather(1, step)


def discounted_sums(values: Tensor, discount: float) -> Tensor:
    """`[N, K]` float64: at k the sum over l >= 0 of `discount^l * values[k + l]`. `discount` in [0, 1]."""
    values = values.double()
    n, length = values.shape
    if not values.numel():
        return values
    width = min(BLOCK, length)
    decay, inside = _powers(discount, width, values.device)
    # [N, blocks, width], the last block padded with 0: sums within each block.
    if length % width:
        values = torch.nn.functional.pad(values, (0, -length % width))
    sums = values.view(n, -1, width) @ inside
    # Column 0 is a block's whole sum, discounted to its first step. Summed over the blocks from the next one on, by the
    # same function with discount^width, it is [N, blocks - 1]: what enters a block at its end, decayed to each step.
    if sums.shape[1] > 1:
        entering = discounted_sums(sums[:, 1:, 0], discount**width)
        sums[:, :-1].addcmul_(entering[:, :, None], decay)
    return sums.flatten(1)[:, :length]


@lru_cache(maxsize=8)  # the same for all rows of a batch, and for every step of a run
def _powers(discount: float, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`[width]`: the weight at each step of a block of a sum that enters after its end, discount^(width - k).

    `[width, width]`: the weight of step l (rows) in the sum at step k (columns), discount^(l - k), and 0 for l < k.
    """
    step = torch.arange(width, device=device)
    distance = step[:, None] - step
    base = torch.tensor(discount, dtype=torch.float64, device=device)
    return base ** (width - step), torch.where(distance >= 0, base ** distance.clamp(min=0), 0.0)


def _whiten(values: Tensor, mask: Tensor, count: Tensor, total: Tensor, squares: Tensor) -> None:
    """Shift and scale `[N, T]` in place: mean 0 and variance 1 (n - 1) over the mask, 0 outside it.

    `count`, `total` and `squares` are sums over the mask, in float64: the variance is their difference.
    """
    mean = total / count.clamp(min=1)
    variance = (squares - count * mean**2).clamp(min=0) / (count - 1).clamp(min=1)
    scale = (variance + VARIANCE_EPS).rsqrt()
    for rows in _row_blocks(mask):
        values[rows].sub_(mean).mul_(scale).mul_(mask[rows].float())


def _row_blocks(mask: Tensor) -> list[slice]:
    """Rows that are computed at once, about `CACHED` numbers each."""
    rows = max(1, CACHED // max(1, mask.shape[1]))
    return [slice(start, start + rows) for start in range(0, len(mask), rows)]
