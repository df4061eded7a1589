"""GAE as textbooks and verl compute it: one pass from the last token to the first, in a loop over time.

Written after the formula (arXiv 1506.02438, eq. 16), with whitened advantages and returns, in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae_by_loop(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Advantages and returns `[N, T]` of token rewards `[N, T]`; inserted tokens are no time steps."""
    advantages = torch.zeros_like(values)
    next_value = next_advantage = torch.zeros(len(values))
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * next_advantage
        advantages[:, t] = advantage
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        next_advantage = torch.where(mask[:, t], advantage, next_advantage)
    returns = (advantages + values) * mask
    chosen = advantages[mask]
    whitened = (advantages - chosen.mean()) * torch.rsqrt(chosen.var() + 1e-8)
    return whitened * mask, returns
