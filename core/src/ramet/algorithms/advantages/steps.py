"""Time steps of a rollout, and discounted sums over them.

A time step is a *sampled* token. Inserted tokens are not actions, so a tool result is not discounted, however long. A
rollout's reward is added at its last sampled token, and a token reward on an inserted token at the action that led
there: the last sampled token before it.

Shapes: N rollouts, T response tokens, K time steps; K <= T, since only sampled tokens are steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

BLOCK = 32  # time steps


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSteps:
    """The time step that each response token belongs to. Both are `[N, T]`."""

    step: Tensor  # int64: of the last sampled token so far; 0 before the first
    begun: Tensor  # bool: whether there was one

    @classmethod
    def of(cls, mask: Tensor) -> TimeSteps:
        """`mask` `[N, T]` is True on sampled tokens."""
        step = mask.cumsum(1).sub_(1)
        begun = step >= 0
        return cls(step=step.clamp_(min=0), begun=begun)

    def add_rewards(self, steps: Tensor, rewards: Tensor, token_rewards: Tensor | None) -> None:
        """Add the rewards of rollouts `[N]` and tokens `[N, T]` to `steps`, `[N, T]` float64 by time step, in place.

        Token rewards before the first sampled token reward no action; a rollout without one gets none.
        """
        if token_rewards is not None:
            steps.scatter_add_(1, self.step, torch.where(self.begun, token_rewards, 0.0).double())
        steps.scatter_add_(1, self.step[:, -1:], rewards.double()[:, None] * self.begun[:, -1:])


def rewards_at_the_end(mask: Tensor, rewards: Tensor) -> Tensor:
    """`[N, T]` float64: the rewards `[N]` at the last sampled token of each rollout, for sums over every position."""
    position = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, position, -1).amax(1, keepdim=True) if mask.shape[1] else position[None]
    return (position == last) * rewards.double()[:, None]


def discounted_sums(values: Tensor, discount: float) -> Tensor:
    """`[N, K]` float64: at k the sum over l >= 0 of `discount^l * values[k + l]`. `discount` in [0, 1].

    Nothing loops over time: the sum is computed in blocks of 32 steps, each a product with a matrix of powers of the
    discount. The sums at the blocks' first steps are the same problem again, 32 times shorter. No power is ever divided
    by, so no discount can overflow.
    """
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
    # Column 0 is a block's sum, discounted to its first step. Summed over the blocks from the next one on, by the
    # # same function with discount^width, it is [N, blocks - 1]: the value at a block's end, decayed to each step.
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
