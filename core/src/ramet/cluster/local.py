"""`cluster=local`: one policy rank and one rollout worker with its engine, in this process.

The policy computes in a separate thread, so that rollouts and tools continue meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from torch import Tensor

from ramet.cluster.counts import Counts, total_metrics
from ramet.cluster.interfaces import OnGroup
from ramet.components.build import Components, needs_rewards
from ramet.components.engines import build_engine
from ramet.components.services import RunServices
from ramet.components.toolbox import Schemas, Toolbox, open_tools
from ramet.config.schema import Config
from ramet.engines.protocol import Engine, EngineInfo
from ramet.errors import InfraError
from ramet.models.encoder import Encoder
from ramet.models.loading import build_encoder
from ramet.policy.checkpoint.store import verify
from ramet.policy.progress import PassProgress
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import CriticSpec, PolicySpec
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.completion import Versions
from ramet.rollout.observer import RolloutObserver
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.progress import RolloutProgress
from ramet.rollout.prompts import describes_tools
from ramet.rollout.worker import RolloutWorker
from ramet.types import BranchPolicy, Group

P = ParamSpec("P")
T = TypeVar("T")


class LocalRollouts:
    """`ramet.cluster.interfaces.Rollouts` over one worker."""

    recorder = None  # the groups are in this process

    def __init__(
        self,
        config: Config,
        encoder: Encoder,
        *,
        components: Components,
        tools: Toolbox,
        branching: bool = False,
        observer: RolloutObserver | None = None,
        engine: Engine | None = None,
        branch_policy: BranchPolicy | None = None,
    ) -> None:
        """Make rollouts that all start from the prompt without `branching`, and close `tools` and the engine with
        themselves. `engine` and `branch_policy`: instead of the configured ones.

        A branch policy that needs rewards asks the components' scorer, which the caller that made them starts and
        closes.
        """
        self.encoder = encoder
        self.engine = build_engine(config, encoder) if engine is None else engine
        self.version = self.engine.policy_version  # of the weights that the engine was given last
        self._toolbox = tools
        self._kept: list[Counts] = []  # for `metrics`, from before uncounted work
        self._counted_at = time.monotonic()
        self.worker = RolloutWorker(
            engine=self.engine,
            encoder=encoder,
            step=components.step,
            branch_policy=branch_policy or (components.branch_policy if branching else NoBranching()),
            tools=tools.tools,
            tool_sets=tools.sets,
            score=components.scorer.score_rollout if branching and needs_rewards(components.branch_policy) else None,
            config=config.rollout,
            system_prompt=config.rollout_step.system_prompt,
            tools_in_template=describes_tools(components.step, config.rollout_step.tools_in_template),
            instruction=config.rollout_step.instruction,
            seed=config.run.seed,
            deterministic=config.run.deterministic,
            observer=observer,
        )

    @classmethod
    async def open(
        cls,
        config: Config,
        encoder: Encoder,
        *,
        components: Components,
        services: RunServices,
        branching: bool = False,
        expected: Mapping[str, Schemas] | None = None,
        observer: RolloutObserver | None = None,
    ) -> LocalRollouts:
        """Open them with the configured tools, started. `expected`: by tool set, the schemas found before the start."""
        tools = await open_tools(config, services, expected=expected)
        try:
            return cls(config, encoder, components=components, tools=tools, branching=branching, observer=observer)
        except BaseException:
            await tools.close()
            raise

    def group_size(self, plan: RolloutPlan) -> int:
        return plan.resolved(self.worker.config).group_size

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    async def run(self, request: RolloutRequest, *, on_group: OnGroup | None = None) -> list[Group]:
        versions = Versions(self.version, newest=lambda: self.version)
        return await self.worker.run(request, on_group=on_group, versions=versions)

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Give the engine these weights, by which its replies must be from now on. Raises what `expect` raises."""
        self.expect(version)
        await self.engine.update_weights(weights, version)

    def expect(self, version: int) -> None:
        """Weights of this version come next: whatever is requested from now on waits for them, and replies must be by
        them. Raises `InfraError` if newer ones came before, and leaves those.
        """
        if version < self.version:
            raise InfraError(f"weights of version {version} came after version {self.version}: refused")
        self.version = version

    async def metrics(self) -> dict[str, float]:
        kept, self._kept = self._kept, []
        counted = total_metrics([*kept, self.take_counts()])
        return {**self.worker.metrics(), **counted}  # its tools are in the counts

    @asynccontextmanager
    async def uncounted(self) -> AsyncIterator[None]:
        self._kept.append(self.take_counts())
        yield
        self.take_counts()

    def take_counts(self) -> Counts:
        """Return what tools and engine counted since the last call."""
        now = time.monotonic()
        since, self._counted_at = self._counted_at, now
        engine = dict(self.engine.metrics())
        return Counts(tools=self.worker.take_tool_stats(), engine=engine, seconds=now - since)

    def progress(self) -> RolloutProgress:
        return self.worker.progress()

    async def close(self) -> None:
        await self.worker.close()
        await self._toolbox.close_sets()
        await self.engine.close()


class LocalRanks:
    """`ramet.cluster.interfaces.Ranks`: the only rank. Its thread is the only one that changes the models."""

    def __init__(self, spec: PolicySpec, critic: CriticSpec | None) -> None:
        self.rank = PolicyRank(spec, critic)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ramet-policy")

    async def call(self, function: Callable[Concatenate[PolicyRank, P], T], *arguments: P.args, **named: P.kwargs) -> T:
        work = partial(function, self.rank, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def write_staged(self, folder: Path) -> None:
        self.rank.write_staged(folder)

    def verify(self, folder: Path) -> list[str]:
        return verify(folder)

    def progress(self) -> PassProgress | None:
        return self.rank.progress

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)


def weights_of(rank: PolicyRank) -> list[tuple[str, Tensor]]:
    """The rank's own tensors, to be copied before the next update changes them; with LoRA, merged, in host memory,
    since the device need not have room for a second model.
    """
    if rank.spec.policy.lora_rank:
        return [(name, tensor.cpu()) for name, tensor in rank.engine_weights()]
    return list(rank.weights())


class LocalBackend:
    """`ramet.cluster.interfaces.Backend` in this process."""

    learn_groups = None  # the groups are in this process

    def __init__(self, policy: LocalRanks, rollouts: LocalRollouts, services: RunServices) -> None:
        self.policy = policy
        self.rollouts = rollouts
        self.services = services

    @classmethod
    async def start(
        cls,
        config: Config,
        spec: PolicySpec,
        *,
        components: Components,
        services: RunServices,
        critic: CriticSpec | None = None,
        expected: Mapping[str, Schemas] | None = None,
    ) -> LocalBackend:
        policy = LocalRanks(spec, critic)
        await policy.call(PolicyRank.rest)  # an engine in another process takes the free memory
        rollouts = await LocalRollouts.open(
            config,
            build_encoder(config),
            components=components,
            services=services,
            branching=True,
            expected=expected,
        )
        return cls(policy, rollouts, services)

    async def sync_weights(self, version: int) -> None:
        await self.policy.call(PolicyRank.rest)  # an engine in another process needs this GPU's memory to load them
        await self.rollouts.update_weights(await self.policy.call(weights_of), version)

    async def close(self) -> None:
        await self.rollouts.close()
        await self.policy.close()
