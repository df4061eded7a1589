"""`transformers.Trainer` on our data and masks: its arguments, its progress to our trackers, its resume.

The loss is the mean over the trained tokens of an optimiser step, whatever rank and micro-batch they are in. Trainer
sees an optimiser step as one batch, whose micro-batches are computed here: their number differs from step to step.
"""

from __future__ import annotations

import logging
import math
import signal
import sys
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
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ramet.config.schema import Config, Dtype, SftConfig, Strategy
from ramet.errors import ConfigError
from ramet.io.os_errors import naming
from ramet.io.terminal_line import is_live
from ramet.models.loading import resolve_device
from ramet.policy.lora import PEFT, adapted, adapters, merged
from ramet.policy.optim import has_one_kernel
from ramet.runs.stopped import StopListener
from ramet.sft.batches import Examples, StepBatch, StepPacker, StepSampler
from ramet.sft.checkpoints import SftLayout, finish_deleting, newest_complete, remove_oldest, step_of
from ramet.sft.encode import Example
from ramet.sft.loss import give_loss, inputs_of
from ramet.sft.progress import LOSS, VALID_LOSS, SftProgress
from ramet.sft.strategies import deepspeed_config, finish_fsdp, fsdp_config
from ramet.sft.world import ALONE, World
from ramet.tracking.heartbeat import doing
from ramet.tracking.live import live_line
from ramet.types import Tracker

logger = logging.getLogger(__name__)
CHECKPOINTS = "checkpoints"
STEP = "step"  # key of the batch that Trainer is given
VALID_CURVE = "held-out loss"
STOPPING = "finishing the step, then saving; a second signal ends at once"
KEPT = 2  # checkpoints: the newest may be half-written


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Results of a training, over all its processes unless said otherwise."""

    steps: int
    resumed_step: int  # where this process began
    seconds: float  # of this process
    weights: dict[str, Tensor] | None = None  # all of the first rank's; empty on others; None: they are in the model
    adapter: dict[str, Tensor] = field(default_factory=dict)  # of LoRA, under peft's names; on the first rank
    curves: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)  # name -> steps, values
    best_step: int | None = None  # after which the held-out loss was lowest: whose weights these are
    valid_loss: float | None = None  # of these weights, if it was measured
    stopped: int | None = None  # the signal that ended it before its last step

    @property
    def final_loss(self) -> float:
        return self.curves["loss"][1][-1]


def total_steps(config: SftConfig, examples: int) -> int:
    """Optimiser steps of the complete training."""
    if (steps := config.trainer_options()["max_steps"]) is not None:
        return int(steps)
    return math.ceil(config.epochs * steps_of_pass(config, examples))


def steps_of_pass(config: SftConfig, examples: int) -> int:
    return math.ceil(examples / config.sequences_per_step)


def training_arguments(
    config: Config, run: Path, *, steps: int, use_cpu: bool, one_kernel: bool = False, holds_out: bool = False
) -> TrainingArguments:
    """All arguments of Trainer. `one_kernel`: for a step of AdamW on a CPU; a GPU always has one. `holds_out`: there is
    a held-out loss, after each of whose lowest values a checkpoint is saved.
    """
    sft, options = config.sft, config.sft.trainer_options()
    fsdp = fsdp_config(sft.strategy)
    saves = options["save_steps"] < steps or holds_out
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
        eval_strategy="no",  # SftProgress says when: after passes, too
        metric_for_best_model=VALID_LOSS,
        greater_is_better=False,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_num_workers=0,
    )
    arguments.load_best_model_at_end = holds_out  # as an argument it requires save_steps at evaluations only
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

    def __init__(
        self,
        *,
        sampler: StepSampler,
        packer: StepPacker,
        progress: SftProgress,
        world: World,
        valid: Sequence[Sequence[Example]] = (),
        patience: int | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        **options: Any,
    ) -> None:
        """`valid`: held-out examples, in parts that are packed one after another. `patience`: evaluations without a
        lower loss that end the training. `tokenizer`: is saved with every checkpoint, so that it is a model folder.
        """
        super().__init__(callbacks=[_Passes(sampler), progress], **options)
        self.ended_early = False
        self._sampler = sampler
        self._packer = packer
        self._progress = progress
        self._world = world
        self._valid = valid
        self._patience = patience
        self._tokenizer = tokenizer  # not Trainer's `processing_class`, which would alter the model's configuration

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        super().save_model(output_dir, _internal_call)
        if self._tokenizer is not None and self.args.should_save:
            self._tokenizer.save_pretrained(output_dir or str(self.args.output_dir))

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Return the mean loss per trained token of the held-out examples. All ranks call it."""
        self._progress.begin_measurement()
        model: nn.Module = self.model_wrapped
        model.eval()
        total, tokens = 0.0, 0
        with torch.no_grad():
            for part in self._valid:
                step = self._packer(part)
                tokens += step.n_trained
                for batch in step.micro_batches:
                    with self.compute_loss_context_manager():
                        total += float(model(**inputs_of(batch.to(self.args.device))).loss)
        model.train()
        metrics = {VALID_LOSS: self._world.total([total])[0] / max(1, tokens)}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Save a checkpoint of the best, and end the training when none was better for long enough.

        The count follows from the losses in Trainer's state, so a resume has it too.
        """
        best = bool(super()._determine_best_metric(metrics, trial))
        last = self.state.global_step >= self.state.max_steps
        if best:  # of the last step the weights are these, and Trainer would load earlier ones
            folder = Path(str(self.args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
            # Trainer looks for the folder while the first rank makes it, and ranks would disagree.
            self.state.best_model_checkpoint = None if last else str(folder)
            self.control.should_save = not last
        since = self.state.best_global_step or 0
        worse = sum(VALID_LOSS in entry and entry["step"] > since for entry in self.state.log_history)
        if self._patience is not None and worse >= self._patience:
            self.control.should_training_stop = self.ended_early = True
            self.control.should_save = False  # a resume from here would train on
        return best

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save as Trainer does, without its way of deleting old ones, and not after a loss that is not a number.

        A resume would continue from it. An `OSError` names the checkpoint.
        """
        self._progress.check_before_save(self.state.global_step)
        folder = Path(str(self.args.output_dir))
        with naming(folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"):
            super()._save_checkpoint(model, trial)
        if self.args.should_save:
            remove_oldest(folder, self.state.global_step, keep=KEPT, best=self.state.best_global_step)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """One for all ranks: each packs its own part of a step. So it is not accelerate's, which would cut it again."""
        assert isinstance(self.train_dataset, Examples)
        return DataLoader(self.train_dataset, batch_sampler=self._sampler, collate_fn=self._collated)

    def _collated(self, examples: list[Example]) -> dict[str, StepBatch]:
        """Trainer takes only mappings."""
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
    """Trainer warns where settings differ from a checkpoint's, which it would take. Here this run's count; changes were
    logged when the run directory was checked.
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
    valid: Sequence[Example] = (),
    tokenizer: PreTrainedTokenizerBase | None = None,
    signals: StopListener | None = None,
    world: World = ALONE,
) -> Trained:
    """Train `model` in place, from the newest complete checkpoint under `run` if there is one. At the end it has the
    weights of the lowest loss on the held-out examples `valid`, if any.

    Every rank of `world` calls it. If a signal asked for it, ends after a step, with a checkpoint.
    """
    signals = StopListener() if signals is None else signals
    steps = total_steps(config.sft, len(examples))
    checkpoint = world.from_first(lambda: _checkpoint(run, config, steps))
    every = config.sft.trainer_options()["eval_steps"] or steps_of_pass(config.sft, len(examples))
    progress = SftProgress(tracker, config.sft, signals, world, measure_every=every if valid else None)
    trainer = _trainer(
        model, examples, valid, config, run, steps=steps, tokenizer=tokenizer, progress=progress, world=world
    )
    trainer.args.eval_on_start = bool(valid) and checkpoint is None
    logging.getLogger("transformers.trainer_utils").addFilter(_is_no_comparison)
    logging.getLogger("transformers.trainer").addFilter(_is_no_tied_weight(model))
    tracker.rewind(-1 if checkpoint is None else step_of(checkpoint))  # the loss before the first step is step 0's
    start = time.monotonic()
    # Ranks share a terminal with the process that started them, whose lines a live line would break.
    shows = not world.joins and is_live(sys.stdout)
    doing("" if shows else progress.text)
    said = "" if world.joins else STOPPING
    with signals.deferred(said), live_line(progress.parts) if shows else nullcontext():
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint is not None else None)
    doing("gathering the weights")
    done, best = trainer.state.global_step, _best_step(trainer.state) if valid else None
    weights, adapter = _weights(trainer, model, config.sft, world)
    return Trained(
        steps=done,
        resumed_step=step_of(checkpoint),
        seconds=time.monotonic() - start,
        weights=weights,
        adapter=adapter,
        curves=_curves(trainer.state.log_history),
        best_step=best,
        valid_loss=None if best is None else trainer.state.best_metric,
        # Maybe only another rank has received the signal.
        stopped=None if trainer.ended_early or done >= steps else signals.signal or signal.SIGTERM,
    )


def _best_step(state: TrainerState) -> int | None:
    """The step whose weights the model has now, by its held-out loss; None: the last step's."""
    best = state.best_global_step
    if best is not None and best != state.global_step and state.best_model_checkpoint is None:
        logger.warning("the checkpoint of step %d, with the lowest held-out loss, is gone; the last weights stay", best)
        return None
    return best


def _trainer(
    model: PreTrainedModel,
    examples: Sequence[Example],
    valid: Sequence[Example],
    config: Config,
    run: Path,
    *,
    steps: int,
    tokenizer: PreTrainedTokenizerBase | None,
    progress: SftProgress,
    world: World,
) -> _Trainer:
    sft, size = config.sft, config.sft.sequences_per_step
    device = resolve_device(config.model) if world.joins else next(model.parameters()).device
    packer = StepPacker.of(model, device, budget=sft.max_microbatch_tokens, world=world)
    give_loss(model, sft.max_microbatch_tokens)
    trained: nn.Module = model
    if sft.lora_rank:
        trained = adapted(model, sft.lora_rank, seed=config.run.seed)
        setattr(trained, "forward", model.forward)  # noqa: B010 (peft passes on no arguments but those that it knows)
    kernel = has_one_kernel([parameter for parameter in model.parameters() if parameter.requires_grad])
    trainer = _Trainer(
        sampler=StepSampler(len(examples), per_step=size, seed=config.run.seed),
        packer=packer,
        progress=progress,
        world=world,
        valid=[valid[start : start + size] for start in range(0, len(valid), size)],
        patience=sft.trainer_options()["early_stopping_patience"],
        tokenizer=None if sft.strategy is Strategy.FSDP else tokenizer,  # whose checkpoints contain no model
        model=trained,
        args=training_arguments(
            config, run, steps=steps, use_cpu=device.type == "cpu", one_kernel=kernel, holds_out=bool(valid)
        ),
        train_dataset=Examples(examples),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


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


def _weights(
    trainer: Trainer, model: PreTrainedModel, sft: SftConfig, world: World
) -> tuple[dict[str, Tensor] | None, dict[str, Tensor]]:
    """Weights, merged with the adapter of LoRA, and that adapter. All ranks gather sharded tensors; the first one gets
    it, in host memory.
    """
    if sft.strategy is Strategy.NONE:
        if not sft.lora_rank:
            return None, {}
        state: dict[str, Tensor] = model.state_dict()
    elif sft.strategy in (Strategy.ZERO0, Strategy.ZERO2) and not world.first:
        return {}, {}  # nothing is sharded, and each rank would copy all of it
    else:
        state = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if not world.first:
        return {}, {}
    if not sft.lora_rank:
        return state, {}
    state = {name.removeprefix(PEFT): tensor.detach() for name, tensor in state.items()}
    adapter = {name: tensor.float().cpu() for name, tensor in adapters(state)}
    whole = {name: tensor.cpu() for name, tensor in merged(state)}  # one at a time: a GPU may lack room for two models
    return whole, adapter


def _curves(history: Sequence[dict[str, float]]) -> dict[str, tuple[list[float], list[float]]]:
    names = {LOSS: LOSS, VALID_LOSS: VALID_CURVE, "learning_rate": "learning_rate", "grad_norm": "grad_norm"}
    entries = {name: [entry for entry in history if name in entry] for name in names}
    return {
        title: ([float(entry["step"]) for entry in entries[name]], [entry[name] for entry in entries[name]])
        for name, title in names.items()
        if entries[name]
    }
