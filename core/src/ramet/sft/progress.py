"""How far `ramet sft` is: its numbers for the trackers, what the live line shows, and when to stop."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ramet.config.schema import SftConfig
from ramet.errors import ConfigError
from ramet.runs.stopped import StopListener
from ramet.sft.batches import StepBatch
from ramet.sft.world import World
from ramet.tracking.columns import seconds
from ramet.tracking.heartbeat import spoke
from ramet.tracking.live import Part
from ramet.types import Tracker

logger = logging.getLogger(__name__)
LOSS, VALID_LOSS = "loss", "eval_loss"  # as Trainer calls them


class SftProgress(TrainerCallback):
    """Hands Trainer's numbers to the trackers, stops at a loss that is not a number, and when a signal asks for it.

    Trainer calls the `on_…` methods; `parts` is called by the thread that draws.
    """

    def __init__(
        self,
        tracker: Tracker,
        config: SftConfig,
        signals: StopListener,
        world: World,
        *,
        measure_every: int | None = None,
    ) -> None:
        """`measure_every`: steps between two measurements of the held-out loss; None: nothing is held out."""
        self._tracker = tracker
        self._measure_every = measure_every
        self._measures = False  # the held-out loss, now
        self._config = config
        self._signals = signals
        self._world = world
        self._last: tuple[float, int] | None = None  # when the trackers got values, and after which step
        self._began = self._ended = (0.0, 0)  # when this process began and its last step ended, and after which step
        self._total = 0  # steps; 0: the training has not begun
        self._batches = 0  # of the current step that are done
        self._of = 1  # micro-batches of the current step
        self._fed = [0.0, 0.0]  # tokens and positions of this rank since the trackers got values
        self._loss = torch.zeros(())  # this rank's part, of the steps since the last checkpoint

    def parts(self) -> list[Part]:
        if not self._total:
            return []
        done = self._ended[1]
        several = self._of > 1 and done < self._total
        remaining_s = self._left()
        return [
            Part(f"step {min(done + 1, self._total)}/{self._total}"),
            Part("held-out loss" if self._measures else ""),
            Part(f"batch {self._batches + 1}/{self._of}" if several else "", rank=2),
            Part("stopping after this step" if self._signals.asked else "", rank=1),
            Part("" if remaining_s is None or self._signals.asked else f"left {seconds(remaining_s)}", rank=2),
        ]

    def _left(self) -> float | None:
        """Seconds to the end of the last step, at the mean pace of this process's steps."""
        (start, first), (last, done) = self._began, self._ended
        if done == first:
            return None
        return max(0.0, (last - start) / (done - first) * (self._total - done) - (time.monotonic() - last))

    def text(self) -> str:
        """The parts in one line, for the log."""
        return ", ".join(part.text for part in self.parts() if part.text) or "preparing the training"

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # A resume has the state of its checkpoint, and would log and save as often as the run did then.
        state.logging_steps, state.save_steps = args.logging_steps, args.save_steps
        if state.best_global_step:  # where the run is now
            best = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
            state.best_model_checkpoint = str(best) if best.is_dir() else None
        self._last = self._began = self._ended = (time.monotonic(), state.global_step)
        self._total = state.max_steps

    def begin_measurement(self) -> None:
        """Called before the passes over the held-out rows."""
        self._measures = True

    def begin_step(self, batch: StepBatch) -> None:
        """Called before the passes of an optimiser step."""
        self._of = len(batch.micro_batches)
        self._fed[0] += batch.n_tokens
        self._fed[1] += batch.n_positions

    def end_passes(self, loss: Tensor) -> None:
        """Called after the passes of an optimiser step, with this rank's part of its loss, which is not waited for."""
        self._loss = self._loss.to(loss.device) + loss

    def check_before_save(self, step: int) -> None:
        """All ranks call it. Raises `ConfigError` on all if any step's loss was NaN: so are the weights then."""
        (loss,) = self._world.total([float(self._loss)])
        self._loss = torch.zeros(())
        self._check_finite(loss, step)

    def _check_finite(self, loss: float, step: int, what: str = "loss") -> None:
        if not math.isfinite(loss):
            raise ConfigError(
                f"sft: the {what} is {loss} at step {step}; a smaller sft.lr (now {self._config.lr:g}) or a larger "
                "sft.trainer.warmup_ratio may keep it finite"
            )

    def on_substep_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._batches += 1

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        done, last = state.global_step, state.global_step >= state.max_steps
        self._ended, self._batches = (time.monotonic(), done), 0
        if self._measure_every is not None and (last or done % self._measure_every == 0):
            control.should_log = control.should_evaluate = True
        if last:
            control.should_log = True  # the last steps may be fewer than `logging_steps`
            control.should_save = False  # the model folder follows at once; Trainer cannot resume after the last step
        elif self._world.any(self._signals.asked):  # all ranks end after the same step
            control.should_log = control.should_save = control.should_training_stop = True
        if done == self._began[1] + 1 and not control.should_log and self._world.first:
            logger.info("step %d of %d took %.1f s", done, self._total, self._ended[0] - self._began[0])

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        logs = kwargs["logs"]
        if VALID_LOSS in logs:
            self._measures = False
            self._check_finite(logs[VALID_LOSS], state.global_step, "held-out loss")
            self._log(state.global_step, {"sft/valid_loss": logs[VALID_LOSS]})
        if LOSS not in logs:  # the summary at the end
            return
        self._check_finite(logs[LOSS], state.global_step)
        assert self._last is not None
        now, (then, step) = time.monotonic(), self._last
        self._last = (now, state.global_step)
        took = max(now - then, 1e-9)
        tokens, positions = self._world.total(self._fed)  # all ranks log after the same steps
        self._fed = [0.0, 0.0]
        metrics = {
            "sft/loss": logs[LOSS],
            "sft/lr": logs["learning_rate"],
            "sft/epoch": logs["epoch"],
            "sft/steps_per_s": (state.global_step - step) / took,
            "sft/tokens_per_s": tokens / took,
            "sft/padding_share": 1 - tokens / max(positions, 1.0),
        }
        if "grad_norm" in logs:  # DeepSpeed reports none with zero0 in float32
            metrics["sft/grad_norm"] = logs["grad_norm"]
        self._log(state.global_step, metrics)

    def _log(self, step: int, metrics: dict[str, float]) -> None:
        self._tracker.log(step, metrics)
        spoke()
