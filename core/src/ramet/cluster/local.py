"""`cluster=local`: one policy worker and one rollout worker with its engine, in this process.

The methods are the seam that another place implements: coarse, and their arguments and results can be pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ramet.cluster.engines import build_engine
from ramet.cluster.parts import build_step, build_tools
from ramet.config.schema import Config
from ramet.engines.protocol import EngineInfo
from ramet.models.encoder import Encoder
from ramet.models.loading import load_tokenizer
from ramet.rollout.branching import NoBranching
from ramet.rollout.worker import RolloutPlan, RolloutWorker
from ramet.types import BranchPolicy, Group, Task, Tool


def build_encoder(config: Config) -> Encoder:
    return Encoder(load_tokenizer(config.model))


class LocalRollouts:
    """The rollout side alone: what evaluation needs, and half of what training needs."""

    def __init__(
        self,
        config: Config,
        encoder: Encoder,
        *,
        branch_policy: BranchPolicy | None = None,
        tools: Mapping[str, Tool] | None = None,
    ) -> None:
        """`branch_policy` None starts all rollouts from the prompt; `tools` replaces the configured ones by name."""
        self.encoder = encoder
        self.engine = build_engine(config, encoder)
        tools = build_tools(config) if tools is None else tools
        self.worker = RolloutWorker(
            engine=self.engine,
            encoder=encoder,
            step=build_step(config),
            branch_policy=branch_policy or NoBranching(),
            tools={name: (tool, config.tools[name]) for name, tool in tools.items()},
            config=config.rollout,
            system_prompt=config.rollout_step.system_prompt,
            seed=config.run.seed,
            deterministic=config.run.deterministic,
        )

    def group_size(self, plan: RolloutPlan) -> int:
        """Rollouts per task under this plan."""
        return plan.resolved(self.worker.config).group_size

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    async def run(
        self, tasks: Sequence[Task], *, step: int, plan: RolloutPlan, on_group: Callable[[Group], None] | None = None
    ) -> list[Group]:
        return await self.worker.run(tasks, step=step, plan=plan, on_group=on_group)

    def metrics(self) -> dict[str, float]:
        return {**self.worker.metrics(), **self.engine.metrics()}

    async def close(self) -> None:
        await self.worker.close()
        await self.engine.close()
