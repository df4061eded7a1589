"""GAE: generalized advantage estimation (arXiv 1506.02438, eq. 16) over the sampled tokens of a rollout.

    delta_t = r_t + gamma V_{t+1} - V_t        A_t = sum_l (gamma lam)^l delta_{t+l}        R_t = A_t + V_t

A time step is a *sampled* token: what a tool inserted is no action, so V_{t+1} is the value of the next sampled token
and no discount falls on a tool result, however long. (The released code steps through tool results as well; where
nothing is inserted both agree.) The value behind the last token is 0. A rollout's reward stands at its last sampled
token, and a token reward on an inserted token goes to the action that led there: the last sampled token before it.

Nothing loops over time: blocks of the sum are products with a matrix of powers, and the sums that enter the blocks are
the same problem again, 32 times shorter. No power is ever divided by, so no discount can overflow.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ramet.algorithms.config import GaeConfig
from ramet.types import AdvantageInputs, AdvantageOutput, CriticOptions, Need

BLOCK = 32
CACHED = 2**16  # numbers worked on at once: with many more, memory for intermediate results costs as much as they do
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
        sums = torch.zeros(5, dtype=torch.float64, device=mask.device)
        for part in _parts(mask):
            kept = mask[part].double()
            known = values[part].double().mul_(kept)
            extra = None if batch.token_rewards is None else batch.token_rewards[part]
            advantages[part] = found = self._advantages(mask[part], known, batch.rewards[part], extra).mul_(kept)
            total, squares = found.sum(), torch.linalg.vector_norm(found) ** 2
            returns[part] = found.add_(known)
            sums += torch.stack([kept.sum(), total, squares, known.sum(), found.sum()])
        if self.config.whiten:
            _whiten(advantages, mask, *sums[:3])
        n, _, _, of_values, of_returns = sums.tolist()
        metrics = {"critic/value_mean": of_values / max(n, 1), "critic/return_mean": of_returns / max(n, 1)}
        return AdvantageOutput(advantages=advantages, returns=returns, metrics=metrics)

    def _advantages(self, mask: Tensor, values: Tensor, rewards: Tensor, token_rewards: Tensor | None) -> Tensor:
        """`[N, T]` float64; anything outside the mask. `values` are 0 there."""
        step = mask.cumsum(1).sub_(1)  # of the last sampled token so far
        begun, step = step >= 0, step.clamp_(min=0)
        moved = torch.zeros_like(values).scatter_add_(1, step, values)
        deltas = moved.neg()
        deltas[:, :-1].add_(moved[:, 1:], alpha=self.config.gamma)
        if token_rewards is not None:  # before the first sampled token nobody has earned anything
            deltas.scatter_add_(1, step, torch.where(begun, token_rewards, 0.0).double())
        deltas.scatter_add_(1, step[:, -1:], rewards.double()[:, None] * begun[:, -1:])
        return discounted_sums(deltas, self.config.gamma * self.config.lam).gather(1, step)


def discounted_sums(values: Tensor, discount: float) -> Tensor:
    """`[N, K]` float64: at k the sum over l >= 0 of `discount^l * values[k + l]`. `discount` in [0, 1]."""
    values = values.double()
    n, length = values.shape
    if not values.numel():
        return values
    width = min(BLOCK, length)
    decay, inside = _powers(discount, width, values.device)
    if length % width:
        values = torch.nn.functional.pad(values, (0, -length % width))
    sums = values.view(n, -1, width) @ inside
    if sums.shape[1] > 1:
        entering = discounted_sums(sums[:, 1:, 0], discount**width)
        sums[:, :-1].addcmul_(entering[:, :, None], decay)
    return sums.flatten(1)[:, :length]


@lru_cache(maxsize=8)  # the same for every part of a batch, and for every step of a run
def _powers(discount: float, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`[width]`: how much of what enters a block behind its end reaches each place; `[width, width]`: from place to
    place within it. 0 to the power of 0 is 1.
    """
    place = torch.arange(width, device=device)
    distance = place[:, None] - place
    base = torch.tensor(discount, dtype=torch.float64, device=device)
    return base ** (width - place), torch.where(distance >= 0, base ** distance.clamp(min=0), 0.0)


def _whiten(values: Tensor, mask: Tensor, count: Tensor, total: Tensor, squares: Tensor) -> None:
    """Shift and scale in place: over the mask mean 0 and variance 1 (n - 1), outside 0. The sums are float64, so that
    their difference tells a variance from none.
    """
    mean = total / count.clamp(min=1)
    variance = (squares - count * mean**2).clamp(min=0) / (count - 1).clamp(min=1)
    scale = (variance + VARIANCE_EPS).rsqrt()
    for part in _parts(mask):
        values[part].sub_(mean).mul_(scale).mul_(mask[part].float())


def _parts(mask: Tensor) -> list[slice]:
    """Rows that are worked on at once."""
    rows = max(1, CACHED // max(1, mask.shape[1]))
    return [slice(start, start + rows) for start in range(0, len(mask), rows)]
