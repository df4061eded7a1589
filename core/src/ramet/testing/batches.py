"""Small batches with everything that trips an algorithm: ragged groups, forks, tool results, padding, NaN parts.

Letters: N rollouts, T response tokens (padded for estimators, packed for losses).
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from ramet.types import AdvantageInputs, LossInputs, Need

GROUPS = (0, 0, 0, 1, 1, 2, 2, 2, 2)
PARENTS = (-1, 0, -1, -1, -1, -1, 5, 5, 6)
FIRST_TURN, RESULT, WIDTH = 3, 2, 10  # sampled tokens of turn 0, inserted tokens behind them, padded length
LENGTHS = (10, 8, 6, 3, 9, 7, 10, 6, 8)  # of the responses; the fourth ends in its first turn


def tiny_batch(seed: int, needs: Collection[Need] = frozenset(Need)) -> AdvantageInputs:
    """Nine rollouts of three groups on ten positions; forks share their parent's first turn and tool result.

    Optional fields are filled exactly if `needs` names them.
    """
    generator = torch.Generator().manual_seed(seed)
    parent = torch.tensor(PARENTS)
    n = len(parent)
    old = _logprobs(generator, parent)
    mask, turn_ids = _layout()
    rewards = torch.randn(n, generator=generator)
    format_part = torch.randint(0, 2, (n,), generator=generator).float()
    format_part[0] = float("nan")
    return AdvantageInputs(
        rewards=rewards,
        reward_parts={"correct": rewards.clone(), "format": format_part},
        mask=mask,
        group_ids=torch.tensor(GROUPS),
        turn_ids=turn_ids,
        parent=parent,
        fork_position=torch.where(parent >= 0, FIRST_TURN + RESULT, 0),
        engine_logprobs=torch.where(mask, old + 0.01, 0.0),
        old_logprobs=old,
        policy_versions=torch.where(mask, 0, -1),
        entropies=_shared(torch.rand(n, WIDTH, generator=generator), parent) if Need.ENTROPY in needs else None,
        ref_logprobs=old - 0.05 if Need.REFERENCE in needs else None,
        values=torch.randn(n, WIDTH, generator=generator) if Need.VALUES in needs else None,
        greedy_rewards=torch.randn(3, generator=generator)[torch.tensor(GROUPS)]
        if Need.GREEDY_ROLLOUT in needs
        else None,
    )


def tiny_loss_batch(seed: int, needs: Collection[Need] = frozenset(Need)) -> LossInputs:
    """The same rollouts packed on one axis, as one micro-batch. `logprobs` (and `entropies`) are leaves with gradient.

    Ratios pi / pi_old spread around 1; two tokens of every sequence are far off.
    """
    generator = torch.Generator().manual_seed(seed)
    padded = tiny_batch(seed, needs)
    lengths = torch.tensor(LENGTHS)
    kept = torch.arange(WIDTH) < lengths[:, None]
    old = padded.old_logprobs[kept]
    shift = 0.1 * torch.randn(len(old), generator=generator)
    starts = torch.cumsum(lengths, 0) - lengths
    shift[starts], shift[starts + 1] = 2.0, -2.0
    entropies, values = padded.entropies, padded.values
    return LossInputs(
        logprobs=(old + shift).requires_grad_(),
        old_logprobs=old,
        engine_logprobs=padded.engine_logprobs[kept],
        advantages=torch.where(padded.mask, torch.randn(len(lengths), WIDTH, generator=generator), 0.0)[kept],
        mask=padded.mask[kept],
        sequence_ids=torch.repeat_interleave(torch.arange(len(lengths)), lengths),
        group_ids=torch.repeat_interleave(padded.group_ids, lengths),
        turn_ids=padded.turn_ids[kept],
        policy_versions=padded.policy_versions[kept],
        entropies=None if entropies is None else entropies[kept].requires_grad_(),
        ref_logprobs=None if padded.ref_logprobs is None else padded.ref_logprobs[kept],
        values=None if values is None else values[kept].requires_grad_(),
        returns=None if values is None else values[kept] + 0.3,
    )


def _logprobs(generator: torch.Generator, parent: Tensor) -> Tensor:
    drawn = -0.1 - 2.0 * torch.rand(len(parent), WIDTH, generator=generator)
    return _shared(drawn, parent)


def _shared(values: Tensor, parent: Tensor) -> Tensor:
    """Give every fork its parent's values on the shared prefix. Parents stand before their forks."""
    for row in range(len(parent)):
        if parent[row] >= 0:
            values[row, : FIRST_TURN + RESULT] = values[parent[row], : FIRST_TURN + RESULT]
    return values


def _layout() -> tuple[Tensor, Tensor]:
    """Mask and turn ids: turn 0, then a tool result (of turn 0, not sampled), then turn 1, then padding."""
    position = torch.arange(WIDTH)
    inside = position < torch.tensor(LENGTHS)[:, None]
    result = (position >= FIRST_TURN) & (position < FIRST_TURN + RESULT)
    turn = torch.where(position < FIRST_TURN + RESULT, 0, 1)
    return inside & ~result, torch.where(inside, turn, -1)
