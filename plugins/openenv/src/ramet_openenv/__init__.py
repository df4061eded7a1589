"""The rollout step `openenv`: environments of OpenEnv servers."""

from __future__ import annotations

from ramet import Register, RolloutStep, hookimpl
from ramet_openenv.config import OpenEnvConfig

ramet_contract = "1"
__all__ = ["OpenEnvConfig"]


@hookimpl
def register_rollout_steps(register: Register[RolloutStep]) -> None:
    register("openenv", "ramet_openenv.step:OpenEnvStep", config=OpenEnvConfig)
