"""The gateway of a rollout worker's agent."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

from ramet.io.process_folder import process_folder
from ramet.plugins.lifecycle import close_component
from ramet.rollout.agents.group import agent_settings
from ramet.rollout.agents.live import MODEL
from ramet.rollout.gateway.control import ControlPlane
from ramet.rollout.gateway.server import Gateway


class AgentService:
    """Serves an agent from the worker's first rollouts until the worker closes."""

    def __init__(self, agent: object) -> None:
        self.gateway: Gateway | None = None  # None: it is not open yet
        self.folder = Path()  # of the rollouts' folders, once it is open
        self._agent = agent
        self._opening = asyncio.Lock()
        self._folders = ExitStack()

    async def open(self) -> None:
        """Open the gateway, at the first call. Raises `ConfigError` if its address cannot be bound."""
        async with self._opening:
            if self.gateway is not None:
                return
            settings = agent_settings(self._agent)
            control: ControlPlane | None = getattr(self._agent, "control", None)
            gateway = Gateway(host=settings.host, port=settings.port, model=MODEL, control=control)
            self.folder = await asyncio.to_thread(self._folders.enter_context, process_folder("ramet-agents-"))
            self.gateway = await gateway.__aenter__()
            if control is not None:
                control.log_address(self.gateway.url)

    async def close(self) -> None:
        """Close the gateway, and the agent if it has an `aclose`."""
        if self.gateway is not None:
            await self.gateway.__aexit__()
        await close_component(self._agent, "the agent")
        await asyncio.to_thread(self._folders.close)
