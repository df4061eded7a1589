"""`ramet train`: check everything, log the plan, train, export a model folder. Resumes an existing run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ramet.cluster.interfaces import Backend
from ramet.cluster.launch import open_backend
from ramet.components.build import Components, start_rewards
from ramet.config.resolved import Resolved
from ramet.config.schema import Config
from ramet.doctor.diagnosis import diagnosed
from ramet.errors import raise_all
from ramet.evaluate.measure import started
from ramet.event_loop import run_async
from ramet.models.torch_setup import set_up_torch
from ramet.policy.checkpoint.store import Checkpoints
from ramet.policy.rank import PolicyRank
from ramet.runs.manifest import make_manifest
from ramet.runs.own_files import file_rights
from ramet.runs.run_dir import RunDir
from ramet.runs.stopped import resumable
from ramet.tracking.jsonl import NAME as METRICS
from ramet.tracking.jsonl import read_metrics
from ramet.tracking.live import live_line
from ramet.tracking.run_log import RunLog, recording
from ramet.tracking.trackers import open_trackers
from ramet.train.dry_run import will_fit
from ramet.train.loop import Loop
from ramet.train.preemption import Preemption
from ramet.train.prefix_store import MAX_TOKENS, PrefixStore, prefix_origin
from ramet.train.prepare import PreparedRun, prepare
from ramet.train.run import TrainRun, TrainState
from ramet.train.specs import critic_spec, policy_spec
from ramet.types import Need, Tracker
from ramet.types.branch import policy_needs

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """A finished run."""

    run: Path  # its directory
    model: Path  # a Hugging Face folder
    steps: int
    metrics: Mapping[str, float]  # all that was logged for the last step, by name


def run(resolved: Resolved) -> TrainResult:
    """The job. Raises `ConfigErrors` before anything is written if something is wrong, and `Stopped` if a signal ended
    the run.
    """
    config = resolved.config
    preemption = Preemption(config.train.grace_s)
    with preemption.listening(), file_rights(private=config.run.private), recording() as log:
        prepared = prepare(resolved)
        set_up_torch(config.run)
        with RunDir.open(config.run.root, config.run.name) as run_dir:
            with resumable(resolved, run_dir.path.name), diagnosed(run_dir.path):
                run_async(_run(resolved, prepared, run_dir, preemption, log))
            return _result(run_dir.path, prepared.total_steps)


def _result(folder: Path, steps: int) -> TrainResult:
    logged = [entry.metrics for entry in read_metrics(folder / METRICS) if entry.step == steps]
    metrics = {name: value for entry in logged for name, value in entry.items()}
    return TrainResult(run=folder, model=folder / "model", steps=steps, metrics=metrics)


async def _run(resolved: Resolved, prepared: PreparedRun, run_dir: RunDir, preemption: Preemption, log: RunLog) -> None:
    config, components = resolved.config, prepared.components
    manifest = make_manifest(resolved, data=prepared.data, model=prepared.model, prompt=prepared.prompt)
    raise_all(run_dir.check_resume(resolved, manifest))
    policy = policy_spec(config, components, prepared.total_steps)
    critic = critic_spec(config, components, prepared.total_steps)
    async with open_backend(
        config,
        policy,
        components=components,
        critic=critic,
        folder=run_dir.services,
        tools=prepared.tools,
    ) as backend:
        run_dir.record(resolved, manifest)
        log.write_to(run_dir.log)
        _announce(config, prepared, run_dir.path)
        with open_trackers(config, run_dir.path, prepared.total_steps) as tracker:
            with preemption.deferred():
                checkpoints = Checkpoints(
                    run_dir.checkpoints,
                    keep=config.train.keep_checkpoints,
                    keep_best=config.train.keep_best,
                    verify_with=backend.policy.verify,
                )
                prefixes = prefix_store(config, components)
                state = await _restore(checkpoints, backend, tracker, prefixes, prepared.data["train"].fingerprint)
                await _train(
                    TrainRun(
                        config=config,
                        folder=run_dir.path,
                        prepared=prepared,
                        backend=backend,
                        policy=policy,
                        critic=critic,
                        checkpoints=checkpoints,
                        tracker=tracker,
                        state=state,
                        prefixes=prefixes,
                        preemption=preemption,
                    )
                )
            preemption.settle()
            await backend.policy.call(PolicyRank.export, run_dir.path / "model")
    logger.info("model in %s; report: ramet report %s", run_dir.path / "model", run_dir.path)


async def _train(run: TrainRun) -> None:
    scorer = run.prepared.components.scorer
    loop = Loop(run)
    try:
        await start_rewards(scorer.rewards, run.backend.services)
        async with started(run.prepared.valid.benchmarks, run.backend.services):
            with live_line(loop.progress.parts):
                await loop.run()
    finally:
        await scorer.aclose()


def prefix_store(config: Config, components: Components) -> PrefixStore | None:
    """Return the store; None if the branch policy starts from no stored prefixes."""
    if Need.PREFIXES not in policy_needs(components.branch_policy):
        return None
    return PrefixStore(MAX_TOKENS, prefix_origin(config))


def _announce(config: Config, prepared: PreparedRun, folder: Path) -> None:
    """Log what will be done, before it is done."""
    train, rollout = config.train, config.rollout
    logger.info(
        "%s: %d steps of %d tasks x %d rollouts from %d tasks%s; %s, %s, engine %s, branch policy %s",
        folder,
        prepared.total_steps,
        train.tasks_per_step,
        rollout.group_size,
        len(prepared.tasks),
        f" ({prepared.too_long} too long)" if prepared.too_long else "",
        config.advantage.name,
        config.policy_loss.name,
        config.engine.name,
        config.branch_policy.name,
    )
    for problem in will_fit(config, prepared.components):
        logger.warning("warning (the run continues): %s", problem)


async def _restore(
    checkpoints: Checkpoints, backend: Backend, tracker: Tracker, prefixes: PrefixStore | None, data: str
) -> TrainState:
    """The state to resume from: the newest verified checkpoint's, or a new one. `data` is the data's fingerprint."""
    newest = await asyncio.to_thread(checkpoints.newest)  # ranks hash it, which this event loop asks
    if newest is None:
        tracker.rewind(-1)
        return TrainState(data_fingerprint=data)
    state = TrainState.load(newest.folder, data)
    if prefixes is not None:
        prefixes.load(newest.folder)
    await backend.policy.call(PolicyRank.load, newest.folder)
    await backend.sync_weights(state.step)
    tracker.rewind(state.step)
    logger.info("resumed after step %d from %s", state.step, newest.folder)
    return state
