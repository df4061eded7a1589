"""`ramet sft`: check everything, encode, train, leave a model folder. A run that was killed goes on where it was."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from ramet.config.resolved import Resolved
from ramet.config.schema import Config
from ramet.errors import raise_all
from ramet.models.loading import DTYPES, load_model
from ramet.models.torch_setup import set_up_torch
from ramet.sft.output import Summary, read_summary, save_model, write_summary
from ramet.sft.prepare import Prepared, prepare
from ramet.sft.trainer import Trained, total_steps, train
from ramet.tracking.manifest import DataRecord, Manifest, make_manifest, model_files, model_fingerprint
from ramet.tracking.metrics import make_trackers
from ramet.tracking.plots import plot_curves
from ramet.tracking.run_dir import RunDir

logger = logging.getLogger(__name__)
CURVE = "sft_loss.png"


def run(resolved: Resolved) -> int:
    """The job; returns the exit code. Raises `ConfigError` before anything is written if something is wrong."""
    config = resolved.config
    prepared = prepare(resolved)
    set_up_torch(config.run)
    manifest = sft_manifest(resolved, prepared)
    with RunDir.open(config.run.root, config.run.name) as directory:
        raise_all(directory.check_resume(resolved, manifest))
        directory.record(resolved, manifest)
        work(config, prepared, directory.path)
    return 0


def sft_manifest(resolved: Resolved, prepared: Prepared) -> Manifest:
    """What the run records of itself."""
    config = resolved.config
    files = DataRecord(files=list(config.sft.data), fingerprint=prepared.fingerprint, tasks=prepared.rows)
    return make_manifest(resolved, data={"train": files}, model=model_fingerprint(*model_files(config.model)))


def work(config: Config, prepared: Prepared, run: Path) -> Summary:
    """Train under the run directory `run` and leave the model, the curve and the summary there."""
    out = Path(config.sft.out) if config.sft.out is not None else run / "model"
    steps = total_steps(config.sft, len(prepared.examples))
    done = read_summary(run)
    if done is not None and done.steps == steps and out.is_dir():
        logger.info("this run is finished: %d steps, model in %s", steps, out)
        return done
    _announce(prepared, steps)
    tracker = make_trackers(config.trackers, run, steps)
    model = load_model(config.model)
    _cast(model, torch.float32)  # what the optimiser needs; `model.dtype` is what is computed in
    pad_id = prepared.tokenizer.pad_token_id
    trained = train(model, prepared.examples, config, run, pad_id=pad_id, tracker=tracker)
    tracker.close()
    _cast(model, DTYPES[config.model.dtype])
    save_model(model, prepared.tokenizer, out)
    plot_curves(run / CURVE, trained.curves, title="Supervised fine-tuning", x="step")
    summary = _summary(config, prepared, trained, out)
    write_summary(run, summary)
    logger.info(
        "%d steps in %.1f s, last loss %.4f; model in %s", trained.steps, trained.seconds, summary.final_loss, out
    )
    return summary


def _cast(model: torch.nn.Module, dtype: torch.dtype) -> None:
    model.to(dtype)


def _announce(prepared: Prepared, steps: int) -> None:
    logger.info(
        "%d rows (%d too long left out), %d examples, %d trained tokens, %d steps",
        prepared.rows,
        prepared.too_long,
        len(prepared.examples),
        prepared.trained_tokens,
        steps,
    )


def _summary(config: Config, prepared: Prepared, trained: Trained, out: Path) -> Summary:
    return Summary(
        model=str(out),
        rows=prepared.rows,
        rows_too_long=prepared.too_long,
        rows_with_unread_results=prepared.unread,
        examples=len(prepared.examples),
        trained_tokens=prepared.trained_tokens,
        steps=trained.steps,
        resumed_step=trained.resumed_step,
        seconds=round(trained.seconds, 3),
        final_loss=trained.final_loss,
        data_fingerprint=prepared.fingerprint,
        seed=config.run.seed,
    )
