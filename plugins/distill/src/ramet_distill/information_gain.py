"""Information gain of turns, IGPO (Wang et al., arXiv 2510.14967).

    p_t = exp(mean over the tokens of the gold answer a of log pi(a_j | x, turns before t, a_<j))
    r_t = p_t+1 - p_t for every turn but the last; the last has the rollout's score
    A_t = sum_k>=t gamma^(k - t) (r_k - mean) / (std + eps)

mean and std are over all r of the group, and a token has the advantage of its turn. A task without a gold answer has
only the scores of its last turns.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from ramet import AdvantageInputs, AdvantageOutput, ConfigError, Need, Probe, Task, group_statistics, rollout_scores
from ramet_distill.config import IgpoConfig


class Igpo:
    """Advantage estimator `igpo`."""

    needs = frozenset({Need.PROBED})
    scope: Literal["batch", "group"] = "group"

    def __init__(self, config: IgpoConfig) -> None:
        self.config = config

    def probe(self, task: Task) -> Probe | None:
        """Return the first gold answer; None for a task without one."""
        return Probe(before=self.config.before, text=task.answer[0]) if task.answer else None

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        rewards = turn_rewards(batch)
        given = ~rewards.isnan()
        group_ids = batch.group_ids[:, None].expand(rewards.shape)[given]
        relative = torch.zeros_like(rewards)
        group = group_statistics(rewards[given], group_ids)
        relative[given] = group.relative(rewards[given], normalize_std=True, eps=self.config.eps)
        to_go = discounted(relative, self.config.gamma)
        by_token = to_go.gather(1, batch.turn_ids.clamp(min=0))
        last = _last_turns(batch)[:, None] == torch.arange(rewards.shape[1])
        gains = rewards[given & ~last]
        metrics = {"advantage/information_gain": float(gains.mean()) if len(gains) else 0.0}
        return AdvantageOutput(advantages=torch.where(batch.mask, by_token, 0.0).float(), metrics=metrics)


def turn_rewards(batch: AdvantageInputs) -> Tensor:
    """`[N, turns]` float64: what each turn gained, and in the last one the rollout's score; NaN where there is none."""
    if batch.probe_logprobs is None:
        raise ConfigError("advantage: igpo needs the probabilities of the gold answers, and the batch has none")
    probability = batch.probe_logprobs.double().exp()
    rewards = torch.full_like(probability, float("nan"))
    rewards[:, :-1] = probability[:, 1:] - probability[:, :-1]
    last = _last_turns(batch)
    rewards[torch.arange(rewards.shape[1]) >= last[:, None]] = float("nan")
    rewards[torch.arange(len(last)), last] = rollout_scores(batch)
    return rewards


def discounted(rewards: Tensor, gamma: float) -> Tensor:
    """`[N, turns]`: the sum of a turn's reward and those after it, each times gamma for every turn between."""
    to_go = rewards.clone()
    for turn in range(rewards.shape[1] - 2, -1, -1):
        to_go[:, turn] += gamma * to_go[:, turn + 1]
    return to_go


def _last_turns(batch: AdvantageInputs) -> Tensor:
    """`[N]`: the last turn in which the policy sampled something; 0 if it sampled nothing."""
    return pad(torch.where(batch.mask, batch.turn_ids, 0), (1, 0)).amax(1)  # a group may have no tokens: T is 0
