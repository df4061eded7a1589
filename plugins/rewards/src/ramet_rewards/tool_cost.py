"""`tool_cost`: the cost of a rollout's tool calls, as a reward of 0 or less.

A call that failed costs as much as one that ran: the policy asked for both. Calls of a shared prefix belong to every
rollout that continues it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ramet import Rollout, Score
from ramet_rewards.config import ToolCostConfig


class ToolCost:
    per_rollout = True

    def __init__(self, config: ToolCostConfig) -> None:
        self.config = config

    def check_tools(self, tools: Sequence[str]) -> Sequence[str]:
        unknown = [name for name in self.config.costs if name not in tools]
        if not unknown:
            return []
        return [f"costs names {', '.join(map(repr, unknown))}; allowed: tools, that is {', '.join(tools) or 'none'}"]

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | Score | None]:
        return [self._score(rollout) for rollout in group]

    def _score(self, rollout: Rollout) -> Score:
        charged = rollout.tool_calls[self.config.free_calls :]
        cost = sum(self.config.costs.get(call.name, self.config.cost) for call in charged)
        return Score(value=-min(cost, self.config.most), parts={"calls": float(len(rollout.tool_calls))})
