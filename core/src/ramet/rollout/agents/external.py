"""The agent `external`: programs anywhere lease the rollouts over HTTP, run them, and say how they ended.

They need the address of the gateway and its admin key (`rollout/gateway/control.py`). Each rollout worker has an
address of its own.
"""

from __future__ import annotations

from typing import Literal, cast

from ramet.rollout.agents.command import task_fields
from ramet.rollout.config import ExternalConfig
from ramet.rollout.gateway.control import ControlPlane
from ramet.types import AgentContext, AgentResult, Task


class ExternalAgent:
    """Offers each rollout for lease, and waits for its end. A rollout that no program leases ends at its deadline."""

    def __init__(self, config: ExternalConfig) -> None:
        """Raises `ConfigError` for an admin key that is too short."""
        self.forks = cast(Literal["replay", "none"], config.forks)
        self.settings = config.settings
        self.control = ControlPlane(config.admin_key, lease_s=config.lease_s)

    async def run(self, task: Task, ctx: AgentContext) -> AgentResult:
        return await self.control.run(task_fields(task), ctx)
