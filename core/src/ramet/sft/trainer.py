"""`transformers.Trainer` on our data and masks: its arguments, its progress to our trackers, its resume.

The loss is the mean over the trained tokens of an optimiser step, whatever micro-batch they stand in.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from ramet.config.schema import Config, Dtype, Schedule, SftConfig
from ramet.errors import ConfigError
from ramet.sft.batches import Collator, Examples
from ramet.sft.encode import Example
from ramet.sft.resume import newest_complete, step_of
from ramet.tracking.metrics import Tracker

logger = logging.getLogger(__name__)
CHECKPOINTS = "checkpoints"
KEPT = 2  # checkpoints: the newest may be half-written
MAX_GRAD_NORM = 1.0
SCHEDULERS = {Schedule.CONSTANT: "constant_with_warmup", Schedule.LINEAR: "linear", Schedule.COSINE: "cosine"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a training did, over all its processes unless said otherwise."""

    steps: int
    resumed_step: int  # where this process began
    seconds: float  # of this process
    curves: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)  # name -> steps, values

    @property
    def final_loss(self) -> float:
        return self.curves["loss"][1][-1]


def total_steps(config: SftConfig, examples: int) -> int:
    """Optimiser steps of the whole training on one device."""
    if config.max_steps is not None:
        return config.max_steps
    batches = math.ceil(examples / config.batch_size)
    return math.ceil(config.epochs * math.ceil(batches / config.accumulate))


def training_arguments(config: Config, run: Path, *, steps: int, use_cpu: bool) -> TrainingArguments:
    """All arguments of Trainer in one place; distributed strategies are added here."""
    sft = config.sft
    saves = sft.save_every < steps
    arguments = TrainingArguments(
        output_dir=str(run / CHECKPOINTS),
        per_device_train_batch_size=sft.batch_size,
        gradient_accumulation_steps=sft.accumulate,
        max_steps=steps,
        learning_rate=sft.lr,
        lr_scheduler_type=SCHEDULERS[sft.schedule],
        warmup_steps=math.ceil(sft.warmup_ratio * steps),
        weight_decay=sft.weight_decay,
        adam_beta2=sft.beta2,
        max_grad_norm=MAX_GRAD_NORM,
        optim="adamw_torch",
        bf16=config.model.dtype is Dtype.BFLOAT16,
        use_cpu=use_cpu,
        seed=config.run.seed,
        data_seed=config.run.seed,
        logging_steps=sft.log_every,
        logging_nan_inf_filter=False,  # it would show the last finite loss instead
        save_strategy="steps" if saves else "no",
        save_steps=sft.save_every if saves else steps,
        save_total_limit=KEPT,
        eval_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=not use_cpu,
    )
    if arguments.n_gpu > 1:
        # Without a launcher Trainer would wrap the model in DataParallel and multiply the batch by the GPUs it sees.
        arguments._n_gpu = 1
    return arguments


class _Progress(TrainerCallback):
    """Hands Trainer's numbers to the trackers and stops at a loss that is no number."""

    def __init__(self, tracker: Tracker, lr: float) -> None:
        self._tracker = tracker
        self._lr = lr
        self._last: tuple[float, int] | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._last = (time.monotonic(), state.global_step)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            control.should_log = True  # the last steps may be fewer than `log_every`
            control.should_save = False  # the model folder follows at once; Trainer cannot resume behind the last step

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        if "loss" not in logs:  # the summary at the end
            return
        if not math.isfinite(logs["loss"]):
            raise ConfigError(
                f"sft: the loss is {logs['loss']} at step {state.global_step}; a smaller sft.lr (now {self._lr:g}) or "
                "a larger sft.warmup_ratio may keep it finite"
            )
        assert self._last is not None
        now, (then, step) = time.monotonic(), self._last
        self._last = (now, state.global_step)
        metrics = {
            "sft/loss": logs["loss"],
            "sft/lr": logs["learning_rate"],
            "sft/grad_norm": logs["grad_norm"],
            "sft/epoch": logs["epoch"],
            "sft/steps_per_s": (state.global_step - step) / max(now - then, 1e-9),
        }
        self._tracker.log(state.global_step, metrics)


def train(
    model: PreTrainedModel,
    examples: Sequence[Example],
    config: Config,
    run: Path,
    *,
    pad_id: int,
    tracker: Tracker,
) -> Trained:
    """Train `model` in place, from the newest complete checkpoint under `run` if there is one."""
    steps = total_steps(config.sft, len(examples))
    use_cpu = next(model.parameters()).device.type == "cpu"
    trainer = Trainer(
        model=model,
        args=training_arguments(config, run, steps=steps, use_cpu=use_cpu),
        data_collator=Collator(pad_id),
        train_dataset=Examples(examples),
        callbacks=[_Progress(tracker, config.sft.lr)],
    )
    trainer.remove_callback(PrinterCallback)
    checkpoint = newest_complete(run / CHECKPOINTS)
    resumed = step_of(checkpoint)
    if resumed >= steps:
        raise ConfigError(f"sft: {run} has trained {resumed} steps already, and now {steps} are asked for in all")
    if checkpoint is not None:
        logger.info("going on from %s", checkpoint)
    tracker.rewind(resumed)
    start = time.monotonic()
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint is not None else None)
    return Trained(
        steps=trainer.state.global_step,
        resumed_step=resumed,
        seconds=time.monotonic() - start,
        curves=_curves(trainer.state.log_history),
    )


def _curves(history: Sequence[dict[str, float]]) -> dict[str, tuple[list[float], list[float]]]:
    logged = [entry for entry in history if "loss" in entry]
    steps = [float(entry["step"]) for entry in logged]
    return {name: (steps, [entry[name] for entry in logged]) for name in ("loss", "learning_rate", "grad_norm")}
