"""`transformers.Trainer` on our data and masks: its arguments, its progress to our trackers, its resume.

The loss is the mean over the trained tokens of an optimiser step, whatever rank and micro-batch they are in. Trainer
sees an optimiser step as one batch, whose micro-batches are computed here: their number differs from step to step.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ramet.config.schema import Config, Dtype, SftConfig, Strategy
from ramet.errors import ConfigError
from ramet.io.os_errors import naming
from ramet.models.loading import resolve_device
from ramet.policy.optim import has_one_kernel
from ramet.runs.stopped import StopListener, Stopped
from ramet.sft.batches import Examples, StepBatch, StepPacker, StepSampler
from ramet.sft.checkpoints import SftLayout, finish_deleting, newest_complete, remove_oldest, step_of
from ramet.sft.encode import Example
from ramet.sft.loss import give_loss, inputs_of
from ramet.sft.progress import SftProgress
from ramet.sft.strategies import deepspeed_config, finish_fsdp, fsdp_config
from ramet.sft.world import ALONE, World
from ramet.tracking.live import live_line
from ramet.types import Tracker

logger = logging.getLogger(__name__)
CHECKPOINTS = "checkpoints"
STEP = "step"  # key of the batch that Trainer is given
KEPT = 2  # checkpoints: the newest may be half-written


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a training did, over all its processes unless said otherwise."""

    steps: int
    resumed_step: int  # where this process began
    seconds: float  # of this process
    weights: dict[str, Tensor] | None = None  # all of the first rank's; empty on others; None: they are in the model
    curves: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)  # name -> steps, values

    @property
    def final_loss(self) -> float:
        return self.curves["loss"][1][-1]


def total_steps(config: SftConfig, examples: int) -> int:
    """Optimiser steps of the whole training."""
    if (steps := config.trainer_options()["max_steps"]) is not None:
        return int(steps)
    return math.ceil(config.epochs * math.ceil(examples / config.sequences_per_step))


def training_arguments(
    config: Config, run: Path, *, steps: int, use_cpu: bool, one_kernel: bool = False
) -> TrainingArguments:
    """All arguments of Trainer. `one_kernel`: for a step of AdamW on a CPU; a GPU always has one."""
    sft, options = config.sft, config.sft.trainer_options()
    fsdp = fsdp_config(sft.strategy)
    saves = options["save_steps"] < steps
    arguments = TrainingArguments(
        output_dir=str(run / CHECKPOINTS),
        per_device_train_batch_size=1,  # of optimiser steps: `_Trainer` makes their micro-batches
        gradient_accumulation_steps=1,
        max_steps=steps,
        learning_rate=sft.lr,
        lr_scheduler_type=options["lr_scheduler_type"],
        warmup_steps=math.ceil(options["warmup_ratio"] * steps),
        weight_decay=options["weight_decay"],
        adam_beta2=options["adam_beta2"],
        max_grad_norm=options["max_grad_norm"],
        optim="adamw_torch" if use_cpu and not one_kernel else "adamw_torch_fused",
        bf16=config.model.dtype is Dtype.BFLOAT16,
        gradient_checkpointing=not use_cpu,  # activations of real sizes are more than a GPU has
        gradient_checkpointing_kwargs={"use_reentrant": False},
        use_cpu=use_cpu,
        deepspeed=deepspeed_config(sft.strategy),
        fsdp=True if fsdp is not None else None,  # type: ignore[arg-type]  # its type is for command lines
        fsdp_config=fsdp,
        ddp_backend="gloo" if use_cpu and sft.strategy is not Strategy.NONE else None,
        ddp_timeout=math.ceil(config.cluster.timeout_s),
        seed=config.run.seed,
        data_seed=config.run.seed,
        logging_steps=options["logging_steps"],
        logging_nan_inf_filter=False,  # it would show the last finite loss instead
        save_strategy="steps" if saves else "no",
        save_steps=options["save_steps"] if saves else steps,
        eval_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_num_workers=0,
    )
    if fsdp is not None:
        finish_fsdp(arguments)
    if arguments.n_gpu > 1:
        # Without a launcher Trainer would wrap the model in DataParallel and multiply the batch by the GPUs it sees.
        arguments._n_gpu = 1
    return arguments


class _Trainer(Trainer):
    """Trainer whose batch is an optimiser step of any number of micro-batches, and whose checkpoints a kill cannot
    leave half-deleted under their names.
    """

    def __init__(self, *, sampler: StepSampler, packer: StepPacker, progress: SftProgress, **options: Any) -> None:
        super().__init__(callbacks=[_Passes(sampler), progress], **options)
        self._sampler = sampler
        self._packer = packer
        self._progress = progress

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save as Trainer does, without its way of deleting old ones, and not after a loss that is not a number.

        A resume would continue from it. An `OSError` names the checkpoint.
        """
        self._progress.check_before_save(self.state.global_step)
        folder = Path(str(self.args.output_dir))
        with naming(folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"):
            super()._save_checkpoint(model, trial)
        if self.args.should_save:
            remove_oldest(folder, self.state.global_step, keep=KEPT)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """One for all ranks: each packs its own part of a step. So it is not accelerate's, which would cut it again."""
        assert isinstance(self.train_dataset, Examples)
        return DataLoader(self.train_dataset, batch_sampler=self._sampler, collate_fn=self._collated)

    def _collated(self, examples: list[Example]) -> dict[str, StepBatch]:
        """Trainer takes mappings alone."""
        return {STEP: self._packer(examples)}

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward passes of an optimiser step. Returns this rank's part of the loss times the number of
        ranks, over which Trainer takes the mean, as everyone who sums gradients does.
        """
        step: StepBatch = inputs[STEP]
        model.train()
        self._progress.begin_step(step)
        deepspeed = self.accelerator.distributed_type == DistributedType.DEEPSPEED
        options = {"scale_wrt_gas": False} if deepspeed else {}
        scale = self.args.world_size / max(1, step.n_trained)
        total = torch.zeros((), device=self.args.device)
        last = len(step.micro_batches) - 1
        for i, batch in enumerate(step.micro_batches):
            self.accelerator.gradient_state._set_sync_gradients(i == last)  # DeepSpeed steps in the last one
            with self.compute_loss_context_manager():
                loss = scale * model(**inputs_of(batch.to(self.args.device))).loss
            self.accelerator.backward(loss, **options)
            total += loss.detach()
            if i < last:
                self.control = self.callback_handler.on_substep_end(self.args, self.state, self.control)
        self._progress.end_passes(total)
        return total

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0, since nothing reads the count."""
        return 0


class _Passes(TrainerCallback):
    """Give the sampler the number of the pass that begins."""

    def __init__(self, sampler: StepSampler) -> None:
        self._sampler = sampler

    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._sampler.set_epoch(int(state.epoch or 0))


def _is_no_comparison(record: logging.LogRecord) -> bool:
    """Trainer warns where settings differ from those of a checkpoint, which it would take. Here ours count, and what
    changed was logged when the run directory was checked.
    """
    return "do not match the ones in the `trainer_state.json`" not in str(record.msg)


def _is_no_tied_weight(model: PreTrainedModel) -> Callable[[logging.LogRecord], bool]:
    """Trainer warns of weights that a checkpoint lacks. Tied ones are stored once, under the other's name."""
    harmless = f"missing keys in the checkpoint model loaded: {sorted(model.all_tied_weights_keys)}."

    def shown(record: logging.LogRecord) -> bool:
        return harmless not in record.getMessage()

    return shown


def train(
    model: PreTrainedModel,
    examples: Sequence[Example],
    config: Config,
    run: Path,
    *,
    tracker: Tracker,
    signals: StopListener | None = None,
    world: World = ALONE,
) -> Trained:
    """Train `model` in place, from the newest complete checkpoint under `run` if there is one.

    Every rank of `world` calls it. If a signal asked for it, writes a checkpoint and raises
    `Stopped`.
    """
    signals = StopListener() if signals is None else signals
    steps = total_steps(config.sft, len(examples))
    checkpoint = world.from_first(lambda: _checkpoint(run, config, steps))
    device = resolve_device(config.model) if world.joins else next(model.parameters()).device
    progress = SftProgress(tracker, config.sft, signals, world)
    budget = config.sft.max_microbatch_tokens
    give_loss(model, budget)
    trainer = _Trainer(
        sampler=StepSampler(len(examples), per_step=config.sft.sequences_per_step, seed=config.run.seed),
        packer=StepPacker.of(model, device, budget=budget, world=world),
        progress=progress,
        model=model,
        args=training_arguments(
            config, run, steps=steps, use_cpu=device.type == "cpu", one_kernel=has_one_kernel(list(model.parameters()))
        ),
        train_dataset=Examples(examples),
    )
    trainer.remove_callback(PrinterCallback)
    logging.getLogger("transformers.trainer_utils").addFilter(_is_no_comparison)
    logging.getLogger("transformers.trainer").addFilter(_is_no_tied_weight(model))
    resumed = step_of(checkpoint)
    tracker.rewind(resumed)
    start = time.monotonic()
    # Ranks share a terminal with the process that started them, whose lines a live line would break.
    with signals.deferred(), nullcontext() if world.joins else live_line(progress.parts):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint is not None else None)
    if trainer.state.global_step < steps:
        if world.first:
            logger.info("saved step %d of %d", trainer.state.global_step, steps)
        raise Stopped(signals.signal or signal.SIGTERM)  # another rank alone may have received it
    return Trained(
        steps=trainer.state.global_step,
        resumed_step=resumed,
        seconds=time.monotonic() - start,
        weights=_weights(trainer, config.sft.strategy, world),
        curves=_curves(trainer.state.log_history),
    )


def _checkpoint(run: Path, config: Config, steps: int) -> Path | None:
    """Return the checkpoint to continue from. Raises `ConfigError` for one that has more steps than this training."""
    finish_deleting(run / CHECKPOINTS)
    checkpoint = newest_complete(run / CHECKPOINTS, SftLayout.of(config))
    resumed = step_of(checkpoint)
    if resumed >= steps:
        raise ConfigError(f"sft: {run} has trained {resumed} steps already, and now {steps} are asked for in all")
    if checkpoint is not None:
        logger.info("resumed after step %d from %s", resumed, checkpoint)
    return checkpoint


def _weights(trainer: Trainer, strategy: Strategy, world: World) -> dict[str, Tensor] | None:
    """All ranks gather what is sharded; the first one gets it, in host memory."""
    if strategy is Strategy.NONE:
        return None
    if strategy in (Strategy.ZERO0, Strategy.ZERO2) and not world.first:
        return {}  # nothing is sharded, and each rank would copy all of it
    weights: dict[str, Tensor] = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    return weights if world.first else {}


def _curves(history: Sequence[dict[str, float]]) -> dict[str, tuple[list[float], list[float]]]:
    logged = [entry for entry in history if "loss" in entry]
    steps = [float(entry["step"]) for entry in logged]
    names = [name for name in ("loss", "learning_rate", "grad_norm") if logged and name in logged[0]]
    return {name: (steps, [entry[name] for entry in logged]) for name in names}
