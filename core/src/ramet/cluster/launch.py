"""Start the backend that `cluster.name` chooses, for training, or only its rollout side."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from ramet.cluster.interfaces import Backend, Ranks, Rollouts
from ramet.cluster.local import LocalBackend, LocalRanks, LocalRollouts
from ramet.components.build import Components, are_started, needs_rewards
from ramet.components.services import RunServices
from ramet.components.toolbox import ToolNames
from ramet.config.schema import Config
from ramet.models.loading import build_encoder
from ramet.policy.spec import CriticSpec, PolicySpec
from ramet.rollout.method import rollout_method
from ramet.rollout.observer import RolloutObserver


@contextmanager
def heap_at_rest() -> Iterator[None]:
    """Exclude objects that exist before the block from garbage collection while it runs: modules above all.

    Otherwise Python scans all of them every thousand rollouts, 0.1 seconds in which no rollout runs. Objects that a
    caller has frozen stay frozen.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@asynccontextmanager
async def open_backend(
    config: Config,
    spec: PolicySpec,
    *,
    components: Components,
    critic: CriticSpec | None = None,
    folder: Path,
    tools: ToolNames,
) -> AsyncIterator[Backend]:
    """The backend that `cluster.name` chooses, started; all its processes have ended when the context is left.

    `components` are this process's; Ray's rollout workers build their own, once each, from the configuration. `folder`
    is where the run's components keep their files, `tools` the names and schemas found before the start. Called in the
    main thread. Raises `ConfigError` if the machine or the cluster has no room for the workers.
    """
    folder = folder.absolute()
    backend: Backend
    with heap_at_rest():
        if config.cluster.name == "ray":
            from ramet.cluster.ray.backend import RayBackend  # Ray is an extra

            shares_limiters = tools.are_started or are_started(components.scorer.rewards)
            backend = await RayBackend.start(
                config,
                spec,
                critic=critic,
                folder=folder,
                tools=tools,
                shares_limiters=shares_limiters,
                score_s=_score_s(components),
                method=rollout_method(components.branch_policy),
            )
        else:
            services = RunServices(folder=folder, seed=config.run.seed)
            backend = await LocalBackend.start(
                config, spec, components=components, services=services, critic=critic, expected=tools.sets
            )
        try:
            yield backend
        finally:
            await backend.close()


@asynccontextmanager
async def open_rollouts(
    config: Config,
    *,
    components: Components,
    folder: Path,
    tools: ToolNames,
    observer: RolloutObserver | None = None,
) -> AsyncIterator[Rollouts]:
    """The rollout side by itself, without forks, as evaluation needs it. Arguments and errors as of `open_backend`.

    `observer` gets the events of every rollout; it is in this process, so only `cluster=local` takes one
    (`ValueError`).
    """
    rollouts: Rollouts
    folder = folder.absolute()
    with heap_at_rest():
        if config.cluster.name == "ray":
            from ramet.cluster.ray.rollouts import RayRollouts

            if observer is not None:
                raise ValueError("cluster=ray takes no observer: its rollouts are in other processes")
            rollouts = await RayRollouts.start(config, folder=folder, tools=tools)
        else:
            services = RunServices(folder=folder, seed=config.run.seed)
            rollouts = await LocalRollouts.open(
                config,
                build_encoder(config),
                components=components,
                services=services,
                expected=tools.sets,
                observer=observer,
            )
        try:
            yield rollouts
        finally:
            await rollouts.close()


@asynccontextmanager
async def open_policy(
    config: Config, spec: PolicySpec, *, critic: CriticSpec | None = None, folder: Path
) -> AsyncIterator[Ranks]:
    """The training side by itself, as the replay of a run needs it. Arguments and errors as of `open_backend`; nothing
    is reserved for engines.
    """
    if config.cluster.name == "ray":
        from ramet.cluster.ray.policy import RayRanks
        from ramet.cluster.ray.worker_pool import WorkerPool

        pool = WorkerPool(config, with_policy=True, with_engines=False, folder=folder.absolute(), shares_limiters=False)
        try:
            await pool.reserve()
            ranks = RayRanks(pool, spec, critic)
            await pool.unless_failed(ranks.open())
            yield ranks
        finally:
            await pool.close()
        return
    local = LocalRanks(spec, critic)
    try:
        yield local
    finally:
        await local.close()


def _score_s(components: Components) -> float:
    """The longest that scoring a rollout may take in its worker: its rewards are asked at once."""
    if not needs_rewards(components.branch_policy):
        return 0.0
    return max((reward.timeout_s for reward in components.scorer.rewards), default=0.0)
