"""GiGPO: a rollout compared with its group, and each turn with others that began in the same state (arXiv 2505.10978).

    A_t = A^E_i + omega A^S_{i, turn of t}
    A^E: GRPO over the group                      A^S: GRPO over the turns of a group that began in the same state,
                                                  by their returns R_k = sum_{l >= k} gamma^(l - k) r_l

States are those that the environment names (`state_ids`). Without names, turns began in the same state where rollouts
share everything before them: the prompt with the first observation, if its tokens are equal, or the prefix of a fork.
So without names and forks only the first turns are compared; the metric `advantage/turns_compared` says how many turns
there were to compare.

r_l is the reward of turn l: the step's reward for it (`turn_rewards`) and the token rewards in it. The rest of the
rollout's reward is added to its last turn, so the rewards of its turns add up to its score. A turn whose state no other
turn began in has A^S = 0 (the mean of one is itself; the authors' code leaves its return uncentred).

Shapes: N rollouts, K turns, T response tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ramet.algorithms.advantages.config import GigpoConfig
from ramet.algorithms.advantages.groups import without_spread
from ramet.algorithms.advantages.steps import discounted_sums
from ramet.helpers.group_scores import group_statistics, rollout_scores
from ramet.types import AdvantageInputs, AdvantageOutput, Need


class Gigpo:
    """Advantage estimator `gigpo`."""

    needs: frozenset[Need] = frozenset()
    reads_threads = True
    scope: Literal["batch", "group"] = "group"

    def __init__(self, config: GigpoConfig) -> None:
        self.config = config

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        config, scores = self.config, rollout_scores(batch)
        episodes = group_statistics(scores, batch.group_ids)
        of_episode = scores - episodes.mean
        turns = _turns(batch)
        # Rounded, so that equal returns are equal to the bit, and their advantages 0.
        returns = discounted_sums(_turn_rewards(batch, turns), config.gamma)[turns.row, turns.turn].float()
        states = group_statistics(returns, turns.state)
        compared = states.size > 1
        of_turn = torch.where(compared, returns - states.mean, 0.0)
        if config.normalize_std:
            of_episode = of_episode / (episodes.std + config.eps)
            of_turn = of_turn / (states.std + config.eps)
        # [N, K], one column at least, then [N, T].
        table = scores.new_zeros(len(scores), turns.count).index_put((turns.row, turns.turn), of_turn)
        by_token = table.gather(1, batch.turn_ids.clamp(min=0))
        advantages = (of_episode[:, None] + config.omega * by_token).float() * batch.mask
        share = float(compared.double().mean()) if len(compared) else 0.0
        return AdvantageOutput(
            advantages=advantages, metrics={**without_spread(episodes), "advantage/turns_compared": share}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turns:
    """The turns of all rollouts in which something was sampled. The fields but `count` are `[M]`, one entry a turn."""

    row: Tensor
    turn: Tensor  # its number within the rollout
    state: Tensor  # equal where turns of a group began in the same state
    count: int  # K


def _turns(batch: AdvantageInputs) -> _Turns:
    mask, turn_ids, length = batch.mask, batch.turn_ids, batch.mask.shape[1]
    count = int(turn_ids[mask].max()) + 1 if mask.any() else 1
    # [N, K + 1]: the position of each turn's first sampled token, `length` if it has none; the last column takes the
    # rest.
    first = torch.full((len(mask), count + 1), length, device=mask.device)
    position = torch.arange(length, device=mask.device).expand(mask.shape)
    first.scatter_reduce_(1, torch.where(mask, turn_ids, count), position, "amin")
    row, turn = (first[:, :count] < length).nonzero(as_tuple=True)
    return _Turns(row=row, turn=turn, state=_states(batch, row, turn, first[row, turn]), count=count)


def _states(batch: AdvantageInputs, row: Tensor, turn: Tensor, first: Tensor) -> Tensor:
    """`[M]` names of the states in which these turns began; `first` is where each turn's first sampled token is."""
    if not len(row):
        return row
    # The token before, which rollouts share exactly if they share all before it; -1: the prompt, which is the group's.
    before = torch.where(first > 0, batch.node_ids[row, (first - 1).clamp(min=0)], -1)
    names = torch.stack([torch.zeros_like(row), batch.group_ids[row], before], dim=1)
    if batch.state_ids is not None:
        missing = max(0, int(turn.max()) + 1 - batch.state_ids.shape[1])
        ids = torch.nn.functional.pad(batch.state_ids, (0, missing), value=-1)[row, turn]
        named = torch.stack([torch.ones_like(row), batch.group_ids[row], ids], dim=1)
        names = torch.where((ids >= 0)[:, None], named, names)
    unique: tuple[Tensor, Tensor] = torch.unique(names, dim=0, return_inverse=True)
    return unique[1]


def _turn_rewards(batch: AdvantageInputs, turns: _Turns) -> Tensor:
    """`[N, K]` float64: r by turn. They add up to the rollout's score."""
    n, rewards = len(batch.rewards), batch.rewards.double()
    last = torch.zeros(n, dtype=torch.int64, device=rewards.device)
    last.scatter_reduce_(0, turns.row, turns.turn, "amax")
    by_turn = rewards.new_zeros(n, turns.count)
    if batch.turn_rewards is not None:
        turn_rewards = batch.turn_rewards.double().nan_to_num()
        width = min(turn_rewards.shape[1], turns.count)
        by_turn[:, :width] = turn_rewards[:, :width]
    rest = rewards - by_turn.sum(1)
    by_turn.scatter_add_(1, last[:, None], rest[:, None])
    if batch.token_rewards is not None:
        turn = batch.turn_ids.clamp(min=0)
        inside = (batch.turn_ids >= 0) & (turn < turns.count)
        by_turn.scatter_add_(1, turn.clamp(max=turns.count - 1), torch.where(inside, batch.token_rewards.double(), 0.0))
    return by_turn
