"""Common part of LLaMA-Factory and TRL: the arguments of transformers' Trainer, as keys of `ramet sft`."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

from ramet.errors import ConfigError
from ramet.migrate.translation import Translation

ADAMW = ("adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf")
NO_WARMUP = "lr_scheduler_type=constant has no warm-up; constant_with_warmup has"
PACKING = ("packing", "neat_packing")
STAGES = {0: "zero0", 1: "zero2", 2: "zero2", 3: "zero3"}  # zero2 shards what stage 1 does, and gradients


def sft_arguments(made: Translation, *, gpus: int | None, folder: Path, length: str) -> None:
    """Translate batches, steps, warm-up, optimiser and folders. `length`: the trainer's key of the longest row."""
    rows, accumulated = "per_device_train_batch_size", "gradient_accumulation_steps"
    n_rows, workers = made.number(rows), gpus or 1
    made.set("sft.sequences_per_step", n_rows * made.number(accumulated) * workers, rows, accumulated)
    made.values["cluster.policy_workers"] = workers
    if longest := made.number(length):
        made.values["sft.max_microbatch_tokens"] = n_rows * longest
    if any(map(made.get, PACKING)):
        why = "a row is then a pack of several rows: set sft.sequences_per_step to the rows of all packs"
        made.open(next(filter(made.get, PACKING)), f"{why}, {made.values['sft.sequences_per_step']} packs")
    if gpus is None:
        made.open(rows, "times the GPUs of the launch, which no key says: give --gpus; 1 is written")
    _strategy(made, workers, folder)
    _steps(made)
    output(made)


def output(made: Translation) -> None:
    """Translate the optimiser, of which there is one, the run's folder and its trackers."""
    if made.get("optim") in (None, *ADAMW):
        made.same("optim", why="AdamW")
    if made.get("output_dir"):
        path = PurePosixPath(str(made.get("output_dir")))
        made.set("run.root", str(path.parent), "output_dir")
        made.set_run(path.name, "output_dir")
    made.set_trackers("report_to", "run_name", "wandb.name")


def _strategy(made: Translation, workers: int, folder: Path) -> None:
    if made.get("deepspeed"):
        name, why = deepspeed_strategy(made.get("deepspeed"), folder)
        if name is None:
            made.open("deepspeed", f"{why}: set sft.strategy")
        else:
            made.set("sft.strategy", name, "deepspeed", why=why)
    elif made.get("fsdp"):
        made.set("sft.strategy", "fsdp", "fsdp")
    elif workers > 1:
        made.values["sft.strategy"] = "zero0"  # nothing is sharded, as in DDP
    empty = (key for key in ("deepspeed", "fsdp") if key in made.given and not made.get(key))
    made.same(*empty, why="nothing is sharded")


def deepspeed_strategy(given: Any, folder: Path) -> tuple[str | None, str]:
    """Return the strategy of a DeepSpeed configuration, by the file's text, otherwise by its name; and the differences.

    Raises `ConfigError` for a file that cannot be read.
    """
    settings = given if isinstance(given, dict) else _settings(Path(str(given)), folder)
    if settings is None:
        name = Path(str(given)).name
        match = re.search(r"z(?:ero)?_?([0-3])", name)
        stage, offload = int(match[1]) if match else None, "offload" in name
        how = "by the file's name: it is not here"
    else:
        zero = settings.get("zero_optimization") or {}
        parts = [zero.get(name) or {} for name in ("offload_optimizer", "offload_param")]
        stage, offload = zero.get("stage", 0), any(part.get("device", "none") != "none" for part in parts)
        how = ""
    if stage not in (0, 1, 2, 3):
        return None, "the file is not here, and its name has no stage" if settings is None else f"stage={stage}"
    if offload and stage != 3:
        how = f"nothing is offloaded at stage {stage}"
    strategy = "zero3_offload" if offload and stage == 3 else STAGES[stage]
    return strategy, f"sft.strategy={strategy}, {how}" if how else ""


def _settings(path: Path, folder: Path) -> dict[str, Any] | None:
    for candidate in (path, folder / path, folder.parent / path):
        if candidate.is_file():
            try:
                settings = json.loads(candidate.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise ConfigError(f"{candidate}: cannot be read: {error}") from error
            return settings if isinstance(settings, dict) else {}
    return None


def _steps(made: Translation) -> None:
    most, epochs, ratio, warmup = "max_steps", "num_train_epochs", "warmup_ratio", "warmup_steps"
    steps = made.number(most, -1)
    if steps > 0:
        made.set("sft.trainer.max_steps", steps, most)
        made.ignored(epochs, why="max_steps is set")
    else:
        made.set("sft.epochs", made.fraction(epochs), epochs)
        made.same(most, why="passes count")
    first = made.fraction(warmup)
    if made.get("lr_scheduler_type") == "constant":
        made.set("sft.trainer.warmup_ratio", 0.0, *filter(made.has, (ratio, warmup)), why=NO_WARMUP)
    elif not first:
        made.set("sft.trainer.warmup_ratio", made.fraction(ratio), ratio)
        made.same(warmup, why="0: warmup_ratio is read")
    elif first >= 1 and steps <= 0:
        made.open(warmup, f"{first:g} steps: set sft.trainer.warmup_ratio to its share of all steps")
        made.ignored(ratio, why="warmup_steps is set")
    else:  # newer versions of transformers take a share here
        made.ignored(ratio, why="warmup_steps is set")
        made.set("sft.trainer.warmup_ratio", first / steps if first >= 1 else first, warmup)
