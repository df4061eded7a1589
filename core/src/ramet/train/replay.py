"""`ramet train --replay RUN`: the updates of a run once more, only from its records.

The tokens of an asynchronous run depend on timing: on which weights sampled them. Its records contain all tokens, group
by group, with the version of the weights that sampled each span. The updates follow from them: on a CPU the replay ends
with the same parameters. It needs the model that the run began with, and neither its data, tools, rewards nor an
engine.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ramet.cluster.check import check_cluster
from ramet.cluster.interfaces import Ranks
from ramet.cluster.launch import open_policy
from ramet.components.build import Components
from ramet.config.checks import check
from ramet.config.resolved import Resolved
from ramet.config.schema import Config
from ramet.errors import ConfigError, raise_all
from ramet.event_loop import run_async
from ramet.export.job import find_checkpoint
from ramet.io import repeats
from ramet.models.check import check_model
from ramet.models.teacher import check_teacher
from ramet.models.torch_setup import check_torch, set_up_torch
from ramet.policy.check import check_policy
from ramet.policy.checkpoint.state import saved_weights
from ramet.policy.checkpoint.store import Checkpoint, Checkpoints
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import CriticSpec, PolicySpec
from ramet.rollout.branching.budgets import step_budget
from ramet.rollout.record import GroupRecord, read_records
from ramet.runs.manifest import Manifest, make_manifest, model_sha256, read_run
from ramet.runs.own_files import file_rights
from ramet.runs.recomposed import recomposed
from ramet.runs.resume import RunState, changes
from ramet.runs.run_dir import RunDir
from ramet.tracking.run_log import recording
from ramet.tracking.trackers import open_trackers
from ramet.train.groups import StepClock, reward_metrics, source_metrics
from ramet.train.learning import Learner
from ramet.train.preemption import Preemption
from ramet.train.prefix_store import GROUPS, ORIGIN
from ramet.train.recording import record_path
from ramet.train.run import TrainState
from ramet.train.specs import critic_spec, policy_spec
from ramet.train.step_rollouts import PlayedStep
from ramet.types import Need, Tracker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """A finished replay."""

    run: Path  # its directory
    model: Path  # a Hugging Face folder
    steps: int
    difference: float  # the largest of any parameter to the run's own; 0: they are the same to the bit


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The run that is replayed: its newest intact checkpoint says how far it came."""

    folder: Path
    checkpoint: Checkpoint
    manifest: Manifest

    @classmethod
    def read(cls, folder: Path) -> _Source:
        """Read what a replay needs, without changing it. Raises `ConfigError`."""
        try:
            saved = read_run(folder)
        except ConfigError as error:
            raise ConfigError(f"--replay: {error}") from error
        if saved.job != "train":
            raise ConfigError(f"--replay: {folder} is a `ramet {saved.job}` run; only `ramet train` makes updates")
        checkpoint = find_checkpoint(folder / "checkpoints", None)
        manifest = RunState.read(folder).manifest
        raise_all(
            f"--replay: {path} is missing; the updates of {checkpoint.folder.name} follow from the records of all steps"
            for path in (record_path(folder, step) for step in range(1, checkpoint.step + 1))
            if not path.exists()
        )
        return cls(folder=folder, checkpoint=checkpoint, manifest=manifest)

    @property
    def n_tasks(self) -> int:
        """Number of tasks that it trained on."""
        data = self.manifest.data["train"]
        return data.tasks - data.too_long - data.by_difficulty

    def step(self, step: int, size: int | None) -> tuple[PlayedStep, list[GroupRecord]]:
        """The groups of a step as they were learned from, `size` of them (None: all), and the records.

        Raises `ConfigError`.
        """
        path = record_path(self.folder, step)
        records = list(read_records(path))
        if size is not None and len(records) < size:
            raise ConfigError(f"{path}: has {len(records)} groups; a step of this run learned from {size}")
        groups = [record.group for record in records]
        numbers = tuple(record.number for record in records if record.number is not None)
        greedy = tuple(reward for record in records for reward in record.greedy)
        replaced = [] if size is None else groups[size:]
        return PlayedStep(groups=groups[:size], replaced=replaced, numbers=numbers, greedy=greedy), records


def run(folder: Path, overrides: Sequence[str] = (), *, config_dir: Path | None = None) -> ReplayResult:
    """Replay the run in `folder` up to its newest checkpoint, into a new run directory.

    `overrides` are keys in addition to the run's, as `run.name=again`. Raises `ConfigErrors` before anything is written
    if they, or the installed packages, would make other updates than the run's, or if the run names code that is not
    trusted.
    """
    source = _Source.read(folder)
    resolved = recomposed(folder, overrides, config_dir=config_dir)
    config = resolved.config
    components, manifest = Components(config), _checked(resolved, source)
    total_steps = config.train.total_steps(source.n_tasks)
    policy = policy_spec(config, components, total_steps)
    critic = critic_spec(config, components, total_steps)
    with Preemption(config.train.grace_s).listening(), file_rights(private=config.run.private), recording() as log:
        set_up_torch(config.run)
        with RunDir.open(config.run.root, config.run.name) as run_dir:
            if run_dir.resumed:
                raise ConfigError(f"run.name={run_dir.path.name}: there is a run already; a replay needs another name")
            run_dir.record(resolved, manifest)
            log.write_to(run_dir.log)
            return run_async(_Replay(source, config, components, run_dir).run(policy, critic))


def _checked(resolved: Resolved, source: _Source) -> Manifest:
    """The manifest of the replay. Raises `ConfigErrors`."""
    config = resolved.config
    problems = [
        *check(resolved, "train"),
        *check_model(config.model),
        *check_torch(config.run, config.model),
        *check_cluster(config),
        *check_policy(config, elsewhere=False),
        *check_teacher(config),
    ]
    raise_all(dict.fromkeys(problems))
    manifest = make_manifest(resolved, data=source.manifest.data, model=model_sha256(resolved))
    differences = changes(RunState.read(source.folder), RunState(config=resolved.text, manifest=manifest))
    if not config.run.allow_config_change:
        raise_all(
            f"{text}; the updates would differ from {source.folder}: undo it, or set run.allow_config_change=true"
            for text in differences.harmful
        )
    for text in differences.harmful:
        logger.warning("replay with a change that alters the numbers: %s", text)
    return manifest


class _Replay:
    """One replay, into its run directory."""

    def __init__(self, source: _Source, config: Config, components: Components, run_dir: RunDir) -> None:
        self.source = source
        self.config = config
        self.estimator = components.advantage
        self.is_uniform = step_budget(config.train.budget, components.branch_policy) is None
        self.run_dir = run_dir
        self.state = TrainState.load(source.checkpoint.folder, source.manifest.data["train"].fingerprint)
        self.steps = source.checkpoint.step

    async def run(self, spec: PolicySpec, critic: CriticSpec | None) -> ReplayResult:
        model = self.run_dir.path / "model"
        logger.info("%s: replaying %d steps of %s", self.run_dir.path, self.steps, self.source.folder)
        async with open_policy(self.config, spec, critic=critic, folder=self.run_dir.services) as ranks:
            learner = Learner(
                self.config,
                folder=self.run_dir.path,
                ranks=ranks,
                critic=critic,
                estimator=self.estimator,
                needs_reference=spec.needs_reference,
                state=TrainState(data_fingerprint=self.state.data_fingerprint),
                preemption=Preemption(self.config.train.grace_s),
            )
            with open_trackers(self.config, self.run_dir.path, self.steps) as tracker:
                for step in range(1, self.steps + 1):
                    await self._step(step, learner, tracker)
            repeats.report(logger, self.steps)
            saved = await self._save(ranks)
            await ranks.call(PolicyRank.export, model)
        difference = largest_difference(self.source.checkpoint.folder, saved)
        self._tell(difference)
        return ReplayResult(run=self.run_dir.path, model=model, steps=self.steps, difference=difference)

    async def _step(self, step: int, learner: Learner, tracker: Tracker) -> None:
        played, records = self.source.step(step, self.config.train.tasks_per_step if self.is_uniform else None)
        greedy = list(played.greedy[: len(played.groups)]) if Need.GREEDY_ROLLOUT in self.estimator.needs else None
        if greedy == []:
            raise ConfigError(
                f"--replay: {self.source.folder} has no rewards of greedy rollouts in its records, which "
                f"advantage={self.config.advantage.name} needs; they were written by an earlier version"
            )
        clock = StepClock()
        metrics = {**reward_metrics(played.all), **source_metrics(played.all)}
        metrics |= await learner.learn(step, played, greedy, clock)
        again = read_records(record_path(self.run_dir.path, step))
        if any(new.advantages != old.advantages for new, old in zip(again, records, strict=True)):
            message = "step %d: the advantages differ from the record"
            repeats.warn(logger, "other advantages than recorded", message, step, by_step=True)
        tracker.log(step, metrics | clock.metrics())

    async def _save(self, ranks: Ranks) -> Path:
        """A checkpoint as the run's own, from which training can continue."""
        await ranks.call(PolicyRank.stage, True)
        checkpoints = Checkpoints(self.run_dir.checkpoints, keep=self.config.train.keep_checkpoints)

        def write(folder: Path) -> None:
            ranks.write_staged(folder)
            self.state.save(folder)
            for name in (GROUPS, ORIGIN):
                if (file := self.source.checkpoint.folder / name).is_file():
                    shutil.copyfile(file, folder / name)

        saved = await asyncio.to_thread(checkpoints.save, self.steps, write)  # ranks answer through this event loop
        return saved.folder

    def _tell(self, difference: float) -> None:
        if difference:
            logger.warning(
                "after %d steps the parameters differ from %s by at most %.3g: %s",
                self.steps,
                self.source.checkpoint.folder,
                difference,
                "GPUs add in another order" if self.config.model.device != "cpu" else "they should not",
            )
            return
        logger.info("after %d steps the parameters equal %s, to the bit", self.steps, self.source.checkpoint.folder)


def largest_difference(first: Path, second: Path) -> float:
    """Return the largest difference of any parameter of two checkpoints; infinite where shapes or names differ."""
    first_weights, second_weights = saved_weights(first), saved_weights(second)
    if {name: tensor.shape for name, tensor in first_weights.items()} != {
        name: tensor.shape for name, tensor in second_weights.items()
    }:
        return float("inf")
    return max(
        (
            float((first_weights[name] - second_weights[name]).abs().max())
            for name in first_weights
            if first_weights[name].numel()
        ),
        default=0.0,
    )
