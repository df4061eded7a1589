"""M2PO: stale tokens are left out by their part in the second moment of the ratio (Zheng et al., arXiv 2510.01161).

    L_t = -A_t r_t m_t        r_t = pi / pi_old
    m_t = 0 for the tokens with the largest (log r_t)^2, as few as bring the mean of (log r_t)^2 to `budget`; else 1

Only tokens count that PPO's clip could hold (r > 1 and A > 0, or r < 1 and A < 0), in the mean and among those that are
left out. PPO leaves a token out by its own ratio, so with stale data it loses many; here a sequence keeps all of them
as long as they moved little on average.

The mask is the paper's as AReaL's documentation gives it (docs/algorithms/m2po.md), the tokens that count and the
budget are from the authors' code (verl/trainer/ppo/core_algos.py), which clips at the bound that it finds, but no
tighter than [0.7, 1.5]. Both take the mean over a batch. A loss of Ramet may not depend on other sequences, nor on how
they are put into micro-batches, so here the mean is over the sequence (a thread of a rollout): a sequence that moved
far loses its own tokens for it, and none of others.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ramet.algorithms.losses.config import M2poConfig
from ramet.algorithms.ratio import ratio_of
from ramet.types import LossInputs, LossOutput, Need


class M2po:
    """Policy loss `m2po`."""

    needs: frozenset[Need] = frozenset()
    reads_ratio = True
    zero_without_advantage = True

    def __init__(self, config: M2poConfig) -> None:
        self.config = config

    def __call__(self, batch: LossInputs) -> LossOutput:
        moved = batch.logprobs.detach() - batch.old_logprobs
        outwards = batch.mask & (moved * batch.advantages > 0)
        kept = ~outwards | within_budget(moved**2, outwards, batch.sequence_ids, self.config.budget)
        ratio = ratio_of(batch.logprobs, batch.old_logprobs)
        metrics = {
            "clip_fraction": (~kept).float(),
            "approx_kl": -moved,
            "second_moment": torch.where(kept, moved**2, 0.0),
            "ratio": ratio.detach(),
        }
        return LossOutput(per_token=-batch.advantages * torch.where(kept, ratio, 0.0), metrics=metrics)


def within_budget(values: Tensor, counted: Tensor, units: Tensor, budget: float) -> Tensor:
    """`[T]` bool: whether a counted token is among the smallest `values` of its unit whose mean is at most `budget`.

    `values` `[T]` are at least 0, `units` `[T]` are names. False for tokens that are not counted.
    """
    size = torch.where(counted, values, torch.inf).double()
    by_size = size.argsort(stable=True)
    order = by_size[units[by_size].argsort(stable=True)]  # by unit, within it by size; what is not counted comes last
    sums, numbers = torch.where(counted, values, 0.0).double()[order].cumsum(0), counted[order].long().cumsum(0)
    unit = units[order]
    begins = pad(unit[1:] != unit[:-1], (len(unit[:1]), 0), value=True)
    first = torch.where(begins, torch.arange(len(unit), device=unit.device), 0).cummax(0).values
    before_sum, before_number = pad(sums, (1, 0))[first], pad(numbers, (1, 0))[first]
    mean = (sums - before_sum) / (numbers - before_number).clamp(min=1)
    fits = torch.empty_like(counted).scatter(0, order, mean <= budget)
    return fits & counted
