"""`ramet train`: check everything, say what will be done, train, leave a model folder. Resumes what is there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ramet.cluster.interfaces import Backend
from ramet.cluster.launch import open_backend
from ramet.components.build import build_advantage, build_loss, start_rewards
from ramet.config.resolved import Resolved
from ramet.config.schema import Config
from ramet.errors import InfraError, raise_all
from ramet.event_loop import run_async
from ramet.models.torch_setup import set_up_torch
from ramet.policy.checkpoint.store import Checkpoints
from ramet.policy.spec import CriticSpec, PolicySpec
from ramet.runs.manifest import make_manifest
from ramet.runs.own_files import file_rights
from ramet.runs.run_dir import RunDir
from ramet.runs.stopped import resume_command
from ramet.tracking.jsonl import NAME as METRICS
from ramet.tracking.jsonl import read_metrics
from ramet.tracking.trackers import make_trackers
from ramet.train.loop import Loop
from ramet.train.plan import will_fit
from ramet.train.preemption import Preemption
from ramet.train.prepare import PreparedRun, prepare
from ramet.train.state import TrainState
from ramet.types import CriticOptions, Need, TrackedRun, Tracker

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
    stop = Preemption(config.train.grace_s)
    with stop.listening(), file_rights(private=config.run.private):
        prepared = prepare(resolved)
        set_up_torch(config.run)
        with RunDir.open(config.run.root, config.run.name) as run_dir:
            try:
                run_async(_run(resolved, prepared, run_dir, stop))
            except (KeyboardInterrupt, InfraError):
                logger.warning("resume with: %s", resume_command(resolved, run_dir.path.name))
                raise
            return _result(run_dir.path, prepared.total_steps)


def _result(folder: Path, steps: int) -> TrainResult:
    logged = [entry.metrics for entry in read_metrics(folder / METRICS) if entry.step == steps]
    metrics = {name: value for entry in logged for name, value in entry.items()}
    return TrainResult(run=folder, model=folder / "model", steps=steps, metrics=metrics)


async def _run(resolved: Resolved, prepared: PreparedRun, run_dir: RunDir, stop: Preemption) -> None:
    config = resolved.config
    manifest = make_manifest(resolved, data=prepared.data, model=prepared.model)
    raise_all(run_dir.check_resume(resolved, manifest))
    spec, critic = policy_spec(config, prepared.total_steps), critic_spec(config, prepared.total_steps)
    async with open_backend(
        config,
        spec,
        critic=critic,
        folder=run_dir.services,
        tools=prepared.tools,
    ) as place:
        run_dir.record(resolved, manifest)
        _announce(config, prepared, run_dir.path)
        await _train(config, prepared, run_dir, place, stop)
        stop.settle()
        await place.policy.export(run_dir.path / "model")
    logger.info("model in %s; report: ramet report %s", run_dir.path / "model", run_dir.path)


def policy_spec(config: Config, total_steps: int) -> PolicySpec:
    return PolicySpec(
        model=config.model,
        policy=config.policy,
        train=config.train,
        policy_loss=build_loss(config),
        temperature=config.rollout.temperature,
        max_response_tokens=config.rollout.max_response_tokens,
        total_steps=total_steps,
        seed=config.run.seed,
        needs=build_advantage(config).needs,
    )


def critic_spec(config: Config, total_steps: int) -> CriticSpec | None:
    """None if no algorithm needs values. The estimator may bring the critic's options as `critic`."""
    estimator = build_advantage(config)
    if Need.VALUES not in estimator.needs:
        return None
    return CriticSpec(
        model=config.model,
        policy=config.policy,
        train=config.train,
        options=getattr(estimator, "critic", CriticOptions()),
        total_steps=total_steps,
        seed=config.run.seed,
    )


def _announce(config: Config, prepared: PreparedRun, folder: Path) -> None:
    """What will be done, before it is done."""
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
    for problem in will_fit(config):
        logger.warning("%s", problem)


async def _train(config: Config, prepared: PreparedRun, run_dir: RunDir, place: Backend, stop: Preemption) -> None:
    with stop.deferred():
        checkpoints = Checkpoints(
            run_dir.checkpoints, keep=config.train.keep_checkpoints, keep_best=config.train.keep_best
        )
        tracker = make_trackers(config.trackers, TrackedRun(folder=run_dir.path, total_steps=prepared.total_steps))
        try:
            state = await _restore(checkpoints, place, tracker, prepared.data["train"].fingerprint)
            loop = Loop(
                config,
                folder=run_dir.path,
                place=place,
                needs_reference=policy_spec(config, prepared.total_steps).needs_reference,
                critic=critic_spec(config, prepared.total_steps),
                tasks=prepared.tasks,
                valid=prepared.valid,
                sampler=prepared.sampler,
                checkpoints=checkpoints,
                tracker=tracker,
                total_steps=prepared.total_steps,
                state=state,
                stop=stop,
            )
            try:
                await start_rewards(loop.scorer.rewards, place.services)
                await loop.run()
            finally:
                await loop.scorer.aclose()
        finally:
            tracker.close()


async def _restore(checkpoints: Checkpoints, place: Backend, tracker: Tracker, data: str) -> TrainState:
    """The state to go on from: the newest verified checkpoint's, or the beginning. `data` is the data's fingerprint."""
    newest = checkpoints.newest()
    if newest is None:
        tracker.rewind(-1)
        return TrainState(data_fingerprint=data)
    state = TrainState.load(newest.folder, data)
    await place.policy.load(newest.folder)
    await place.sync_weights(state.step)
    tracker.rewind(state.step)
    logger.info("resumed behind step %d from %s", state.step, newest.folder)
    return state
