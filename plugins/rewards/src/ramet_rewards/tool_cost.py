"""`tool_cost`: what a rollout's tool calls cost, as a reward of 0 or less.

A call that failed costs as much as one that ran: the policy asked for both. Calls of a shared prefix belong to every
rollout that goes on from it.
"""

from __future__ import annotations

from ramet import Reward, Rollout, Score, per_rollout
from ramet_rewards.config import ToolCostConfig


def make(config: ToolCostConfig) -> Reward:
    def score(rollout: Rollout) -> Score:
        charged = rollout.tool_calls[config.free_calls :]
        cost = sum(config.costs.get(call.name, config.cost) for call in charged)
        return Score(value=-min(cost, config.most), parts={"calls": float(len(rollout.tool_calls))})

    return per_rollout(score)
