"""`ramet credit RUN`: continue recorded rollouts before and after each of their turns, and say what each was worth.

The run is only read. Its tools, rollout step, rewards and engine are built as it was configured; the weights are its
exported model, a checkpoint, or another model.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramet.cluster.check import check_cluster
from ramet.cluster.launch import open_rollouts
from ramet.components.build import Components, start_rewards
from ramet.components.checks import check_played
from ramet.components.services import RunServices
from ramet.components.toolbox import ToolNames
from ramet.config.hydra_adapter import override
from ramet.config.resolved import Resolved
from ramet.errors import ConfigError, collected, raise_all
from ramet.event_loop import run_async
from ramet.export.job import export_run, find_checkpoint
from ramet.models.torch_setup import set_up_torch
from ramet.planning.run_plan import DryRun
from ramet.report.credit import CREDIT, credit_folder, read_credit
from ramet.rollout.stateful import replay_problems, step_component
from ramet.runs.manifest import MANIFEST, Manifest, model_sha256, read_manifest, read_run
from ramet.runs.own_files import file_rights, is_private
from ramet.runs.recomposed import recomposed
from ramet.runs.stopped import StopListener
from ramet.tracking.live import Part, live_line
from ramet.tracking.rollout_parts import TokenRate, rollout_parts
from ramet.tracking.run_log import recording
from ramet.train.groups import masked_limit
from ramet_replay.credit.files import CONFIG, POINTS, PointFile, check_folder, write_credit
from ramet_replay.credit.measure import credit_rows, measure
from ramet_replay.credit.points import ChosenRollout, choose, points_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditOptions:
    """Settings of a measurement: which rollouts, how often, with which weights.

    `step` is of the records, `checkpoint` of the weights.
    """

    rollouts: int = 8
    names: Sequence[str] = ()
    step: int | None = None
    samples: int = 16
    model: Path | None = None
    checkpoint: int | None = None
    budget_tokens: int | None = None
    out: Path | None = None
    overrides: Sequence[str] = ()
    config_dir: Path | None = None

    def problems(self) -> list[str]:
        wrong = [
            f"--{name} {value}: must be at least {least}"
            for name, value, least in (
                ("rollouts", self.rollouts, 1),
                ("samples", self.samples, 2),
                ("budget-tokens", self.budget_tokens, 1),
            )
            if value is not None and value < least
        ]
        if self.model is not None and self.checkpoint is not None:
            wrong.append("--model, --checkpoint: both name the weights; leave one of them out")
        wrong += [
            f"{text}: name the weights with --model or --checkpoint"
            for text in self.overrides
            if text.lstrip("+~").startswith("model.path=")
        ]
        return wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditResult:
    """A measurement. `n_reached` of `n_rollouts` were within the budget."""

    folder: Path
    file: Path  # JSON lines
    rows: Sequence[dict[str, Any]]
    n_rollouts: int
    n_reached: int
    tokens: int  # sampled for all points, earlier processes' included


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """The checked parts of a measurement."""

    resolved: Resolved
    components: Components
    tools: ToolNames
    chosen: Sequence[ChosenRollout]
    out: Path
    file: PointFile


def run(folder: Path, options: CreditOptions) -> CreditResult:
    """Measure; finished points of an earlier process are not repeated. Raises `ConfigErrors` before anything starts."""
    with StopListener().listening(), recording():
        _manifest(folder, options)
        check_folder(options.out or credit_folder(folder))
        with file_rights(private=is_private(folder)):
            prepared = _prepare(folder, options, _weights(folder, options, options.out or credit_folder(folder)))
            set_up_torch(prepared.resolved.config.run)
            return run_async(_measure(prepared, options))


def plan(folder: Path, options: CreditOptions) -> DryRun:
    """Return what `run` would do, and how many tokens it would sample at most. Writes nothing."""
    out = options.out or credit_folder(folder)
    model = options.model or _exported(folder, options)
    if model is None and (exported := out / _export_name(folder, options)).is_dir():
        model = exported  # by an earlier process
    prepared = _prepare(folder, options, model)
    points = points_of(prepared.chosen)
    missing = [point for point in points if point.name not in prepared.file.points]
    most = prepared.resolved.config.rollout.max_response_tokens
    tokens = sum(options.samples * (most - point.prefix.n_tokens) for point in missing)
    bounded = "" if options.budget_tokens is None else f"; no wave begins after {options.budget_tokens:,}"
    return DryRun(
        job="credit",
        facts={
            "run": str(folder),
            "model": str(model or f"a checkpoint, exported to {out}/{_export_name(folder, options)}"),
            "rollouts": ", ".join(rollout.name for rollout in prepared.chosen),
            "points": f"{len(points)}, {len(points) - len(missing)} of them measured",
            "continuations": f"{options.samples} of each = {options.samples * len(missing):,}",
            "tokens": f"at most {tokens:,} are sampled{bounded}",
        },
        files=[str(out / name) for name in (POINTS, CREDIT)],
    )


def _manifest(folder: Path, options: CreditOptions) -> Manifest:
    raise_all(options.problems())
    saved = read_run(folder)
    if saved.job != "train":
        raise ConfigError(f"{folder} is a `ramet {saved.job}` run; credit is measured of runs of `ramet train`")
    return read_manifest(folder / MANIFEST)


def _exported(folder: Path, options: CreditOptions) -> Path | None:
    """The run's exported model, unless a checkpoint is asked for; None: there is none."""
    model = folder / "model"
    return model if options.checkpoint is None and (model / "config.json").is_file() else None


def _export_name(folder: Path, options: CreditOptions) -> str:
    return f"model_{find_checkpoint(folder / 'checkpoints', options.checkpoint).step:06d}"


def _weights(folder: Path, options: CreditOptions, out: Path) -> Path:
    """The folder of the model that continues the rollouts. A checkpoint is exported into the folder of the results."""
    if (model := options.model or _exported(folder, options)) is not None:
        return model
    exported = out / _export_name(folder, options)
    if not exported.is_dir():
        logger.info("%s: exporting a checkpoint of %s", exported, folder)
        export_run(folder, exported, step=options.checkpoint)
    return exported


def _prepare(folder: Path, options: CreditOptions, model: Path | None) -> _Prepared:
    """Do all checks, reported together where they are of the configuration."""
    manifest = _manifest(folder, options)
    weights = [] if model is None else [override("model.path", str(model))]
    resolved = recomposed(folder, [*options.overrides, *weights], data=False, config_dir=options.config_dir)
    config, components = resolved.config, Components(resolved.config)
    problems = check_cluster(config)
    if options.samples > config.rollout.max_concurrent:
        problems.append(
            f"--samples {options.samples}: at most rollout.max_concurrent={config.rollout.max_concurrent} run at once"
        )
    tools = check_played(components, config, problems)
    problems += [] if problems else replay_problems([*step_component(components.step), *tools.stateful])
    with collected(problems):
        _ = components.scorer  # its rewards are built
    raise_all(dict.fromkeys(problems))
    chosen = choose(folder, names=options.names, step=options.step, n=options.rollouts)
    out = options.out or credit_folder(folder)
    header = {"run": manifest.id, "model_sha256": model_sha256(resolved), "samples": options.samples}
    file = PointFile(out, {**header, CONFIG: resolved.text})
    file.forget_changed({point.name: point.begins for point in points_of(chosen)})
    return _Prepared(resolved=resolved, components=components, tools=tools, chosen=chosen, out=out, file=file)


async def _measure(prepared: _Prepared, options: CreditOptions) -> CreditResult:
    config, components, out = prepared.resolved.config, prepared.components, prepared.out
    services, scorer = out / "services", components.scorer
    prepared.file.open()
    n_points, n_there = len(points_of(prepared.chosen)), len(prepared.file.points)
    logger.info(
        "%s: %d rollouts, %d points, %d continuations of each", out, len(prepared.chosen), n_points, options.samples
    )
    if n_there:
        logger.info("%s: %d points are there and are not measured again", out / POINTS, n_there)
    try:
        await start_rewards(scorer.rewards, RunServices(folder=services, seed=config.run.seed))
        async with open_rollouts(config, components=components, folder=services, tools=prepared.tools) as rollouts:
            progress = _Progress(n_points)
            with live_line(lambda: [Part(progress.now), *rollout_parts(rollouts.progress(), progress.rate)]):
                reached = await measure(
                    rollouts,
                    scorer,
                    prepared.chosen,
                    prepared.file,
                    samples=options.samples,
                    at_once=config.rollout.max_concurrent,
                    budget=options.budget_tokens,
                    masked_limit=masked_limit(config.rollout),
                    report=progress,
                )
    finally:
        await scorer.aclose()
    rows, names = credit_rows(prepared.chosen, prepared.file), {rollout.name for rollout in prepared.chosen}
    earlier = [row for row in read_credit(out) if row["rollout"] not in names]
    return CreditResult(
        folder=out,
        file=write_credit(out, [*earlier, *rows]),
        rows=rows,
        n_rollouts=len(prepared.chosen),
        n_reached=reached,
        tokens=prepared.file.tokens,
    )


class _Progress:
    """A line on the screen at every tenth of the points, and what the live line shows."""

    def __init__(self, total: int) -> None:
        self._total = total
        self.rate = TokenRate()
        self.now = ""

    def __call__(self, done: int) -> None:
        self.now = f"credit {done}/{self._total} points"
        if done >= self._total or done % max(1, self._total // 10) == 0:
            logger.info("%d of %d points", done, self._total)
