"""`ramet sft`: check everything, encode, train, leave a model folder. A run that was killed continues where it was.

Without a strategy the training runs in this process. With one it runs in ranks, which this process starts on its
machine and watches; started by torchrun, this process is one of the ranks.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ramet.config.resolved import Resolved
from ramet.config.schema import Config, Strategy
from ramet.doctor.diagnosis import diagnosed
from ramet.errors import raise_all
from ramet.hub import cached_name
from ramet.models.loading import DTYPES, load_model, resolve_device
from ramet.models.torch_setup import set_up_torch
from ramet.runs.manifest import DataRecord, Manifest, make_manifest, model_sha256
from ramet.runs.own_files import file_rights
from ramet.runs.run_dir import RunDir
from ramet.runs.stopped import StopListener, Stopped, resumable
from ramet.sft.checkpoints import SftLayout
from ramet.sft.launch import run_ranks
from ramet.sft.output import ADAPTER, Summary, read_summary, save_model, write_adapter, write_summary
from ramet.sft.prepare import PreparedSft, prepare
from ramet.sft.strategies import prepare_process
from ramet.sft.trainer import VALID_CURVE, Trained, total_steps, train
from ramet.sft.world import ALONE, World, launched_world
from ramet.tracking.heartbeat import doing, heartbeat
from ramet.tracking.plots import plot_curves
from ramet.tracking.run_log import RunLog, recording
from ramet.tracking.trackers import Trackers, open_trackers

logger = logging.getLogger(__name__)
CURVE = "sft_loss.png"


@dataclass(frozen=True, slots=True, kw_only=True)
class SftResult:
    """A finished training."""

    run: Path  # its directory
    model: Path  # a Hugging Face folder
    steps: int
    final_loss: float


def run(resolved: Resolved) -> SftResult:
    """The job. Raises `ConfigErrors` before anything is written if something is wrong, and `Stopped` if a signal ended
    the run.
    """
    config, signals = resolved.config, StopListener()
    launched = launched_world()
    speaks = heartbeat() if launched is None or launched.first else nullcontext()
    with signals.listening(), file_rights(private=config.run.private), recording() as log, speaks:
        doing("reading and encoding the rows")
        prepared = prepare(resolved)
        set_up_torch(config.run)
        if launched is None:
            return _run(resolved, prepared, ALONE, signals, log)
        prepare_process(config)
        with launched.joined(config.cluster.timeout_s, gpus=resolve_device(config.model).type == "cuda"):
            return _run(resolved, prepared, launched, signals, log)


def _run(resolved: Resolved, prepared: PreparedSft, world: World, signals: StopListener, log: RunLog) -> SftResult:
    """Run as the only process, which may start others, or as one that torchrun started."""
    config = resolved.config
    with ExitStack() as opened:
        path = world.from_first(lambda: _open(resolved, prepared, opened, log))
        if world.first:
            opened.enter_context(resumable(resolved, path.name))
        with diagnosed(path) if world.first else nullcontext():
            if config.sft.strategy is Strategy.NONE or world.joins:
                train_and_save(config, prepared, path, signals, world)
            elif finished(config, prepared, path) is None:
                run_ranks(config, prepared, path, signals)
        summary = world.from_first(lambda: read_summary(path))  # which only the first rank has written
        assert summary is not None
        return SftResult(run=path, model=Path(summary.model), steps=summary.steps, final_loss=summary.final_loss)


def _open(resolved: Resolved, prepared: PreparedSft, opened: ExitStack, log: RunLog) -> Path:
    """The run directory, this process's until `opened` is closed; `log` is written there from now on."""
    directory = opened.enter_context(RunDir.open(resolved.config.run.root, resolved.config.run.name))
    manifest = sft_manifest(
        resolved,
        fingerprint=prepared.fingerprint,
        rows=prepared.counts.trained,
        valid=prepared.valid_record(resolved),
        prompt=prepared.prompt,
    )
    layout = SftLayout.of(resolved.config)
    raise_all([*directory.check_resume(resolved, manifest), *layout.check(directory.checkpoints)])
    layout.keep(directory.checkpoints)
    directory.record(resolved, manifest)
    log.write_to(directory.log)
    return directory.path


def sft_manifest(
    resolved: Resolved,
    *,
    fingerprint: str,
    rows: int,
    valid: DataRecord | None = None,
    prompt: dict[str, Any] | None = None,
) -> Manifest:
    """The manifest of the run. `fingerprint` of its data, `rows` that it trains on, `valid`: held-out files, `prompt`
    of its first row.
    """
    sft = resolved.config.sft
    files = [str(cached_name(path) or path) for path in sft.data]
    train = DataRecord(files=files, fingerprint=fingerprint, tasks=rows)
    data = {"train": train} | ({} if valid is None else {"valid": valid})
    return make_manifest(resolved, data=data, model=model_sha256(resolved), prompt=prompt)


def finished(config: Config, prepared: PreparedSft, run: Path) -> Summary | None:
    """The summary of the training that this one would be, if it is finished and its model is there."""
    steps = total_steps(config.sft, len(prepared.examples))
    done, out = read_summary(run), out_folder(config, run)
    if done is None or (done.planned_steps or done.steps) != steps or not out.is_dir():
        return None
    logger.info("this run is finished: %d steps, model in %s", done.steps, out)
    return done


def out_folder(config: Config, run: Path) -> Path:
    return Path(config.run.out) if config.run.out is not None else run / "model"


def train_and_save(
    config: Config, prepared: PreparedSft, run: Path, signals: StopListener, world: World = ALONE
) -> None:
    """Train under the run directory `run` and leave the model, the curve and the summary there.

    Every rank of `world` calls it, and the first one writes. Raises `Stopped` if a signal ended it; then there is the
    model as it was, and no summary.
    """
    if world.from_first(lambda: finished(config, prepared, run)) is not None:
        return
    steps = total_steps(config.sft, len(prepared.examples))
    if world.first:
        _announce(prepared, steps)
    with open_trackers(config, run, steps) if world.first else nullcontext(Trackers({})) as tracker:
        _train(config, prepared, run, signals, world, tracker)


def _train(
    config: Config, prepared: PreparedSft, run: Path, signals: StopListener, world: World, tracker: Trackers
) -> None:
    doing("loading the model")
    model = load_model(config.model, device=torch.device("cpu") if world.joins else None)
    if not world.joins and not config.sft.lora_rank:  # DeepSpeed and FSDP make float32 of what they train themselves
        _cast(model, torch.float32)  # for the optimiser; `model.dtype` is for the passes
    trained = train(
        model, prepared.examples, config, run, tracker=tracker, valid=prepared.valid, tokenizer=prepared.tokenizer,
        signals=signals, world=world,
    )  # fmt: skip
    _cast(model, DTYPES[config.model.dtype])
    if world.first:
        doing("writing the model")
        _write(config, prepared, run, model, trained)
    if trained.stopped is not None:
        raise Stopped(trained.stopped)


def _write(config: Config, prepared: PreparedSft, run: Path, model: PreTrainedModel, trained: Trained) -> None:
    out = out_folder(config, run)
    save_model(model, prepared.tokenizer, out, trained.weights)
    if trained.adapter:
        write_adapter(trained.adapter, prepared.tokenizer, run / ADAPTER, config.model.path)
    planned = total_steps(config.sft, len(prepared.examples))
    if trained.stopped is not None:
        best = f", of step {trained.best_step}, whose held-out loss is lowest" if trained.best_step else ""
        logger.info("saved step %d of %d; the model so far is in %s%s", trained.steps, planned, out, best)
        return
    plot_curves(run / CURVE, trained.curves, title="Supervised fine-tuning", x="step")
    summary = _summary(config, prepared, trained, out)
    write_summary(run, summary)
    _report(trained, summary, planned)


def _report(trained: Trained, summary: Summary, planned: int) -> None:
    if trained.steps < planned:
        logger.info("ended early, at step %d of %d: the held-out loss fell no further", trained.steps, planned)
    if trained.valid_loss is not None:
        step, (steps, losses) = trained.best_step, trained.curves[VALID_CURVE]
        logger.info("the weights are from step %d, where the held-out loss was %.4f", step, trained.valid_loss)
        if steps[0] == 0 and losses[0] <= trained.valid_loss:
            logger.warning(
                "the held-out loss was lowest before the training (%.4f): a smaller sft.lr or more rows may help",
                losses[0],
            )
    logger.info(
        "%d steps%s in %.1f s, last loss %.4f; model in %s",
        trained.steps,
        f", the last {trained.steps - trained.resumed_step} of them" if trained.resumed_step else "",
        trained.seconds,
        summary.final_loss,
        summary.model,
    )


def _cast(model: torch.nn.Module, dtype: torch.dtype) -> None:
    model.to(dtype)


def _announce(prepared: PreparedSft, steps: int) -> None:
    counts = prepared.counts
    logger.info(
        "%d rows (%d too long left out%s), %d examples, %d trained tokens, %d steps",
        counts.trained,
        counts.too_long,
        f", {counts.held_out} held out" if counts.held_out else "",
        len(prepared.examples),
        prepared.trained_tokens,
        steps,
    )


def _summary(config: Config, prepared: PreparedSft, trained: Trained, out: Path) -> Summary:
    return Summary(
        model=str(out),
        rows=prepared.counts.trained,
        rows_too_long=prepared.counts.too_long,
        rows_cut=prepared.counts.cut,
        rows_held_out=prepared.counts.held_out,
        rows_malformed=prepared.counts.malformed,
        rows_with_unread_results=prepared.counts.unread,
        examples=len(prepared.examples),
        trained_tokens=prepared.trained_tokens,
        steps=trained.steps,
        planned_steps=total_steps(config.sft, len(prepared.examples)),
        best_step=trained.best_step,
        valid_loss=trained.valid_loss,
        resumed_step=trained.resumed_step,
        seconds=round(trained.seconds, 3),
        final_loss=trained.final_loss,
        data_fingerprint=prepared.fingerprint,
        seed=config.run.seed,
    )
