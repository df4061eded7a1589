"""Trainer's checkpoints: the files of each strategy, whether all exist and are intact, and the newest such checkpoint.

Trainer saves the scheduler, the random states and its own state; the rest depends on who shards:

    none     model.safetensors (of LoRA adapter_model.safetensors), optimizer.pt
    zero*    latest, and in the folder that it names DeepSpeed's `*_states.pt`, most of them one per rank
    fsdp     pytorch_model_fsdp_0/ and optimizer_0/, written by torch.distributed.checkpoint

All but safetensors are zip files or contain zip files, whose checksums cover every byte.

Trainer writes into the final folder and `trainer_state.json` last, so a kill leaves a folder that only looks like a
checkpoint. A rank may also be killed when the first one has written that file. A power loss can leave any file short.
"""

from __future__ import annotations

import io
import json
import logging
import pickle
import re
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.config.schema import Config, Strategy
from ramet.errors import ConfigError
from ramet.io.atomic import finish_removals, remove_folder, write_file
from ramet.io.os_errors import os_error_text
from ramet.policy.checkpoint.checkpoint_list import CheckpointEntry, mark_newest, measured

if TYPE_CHECKING:  # `ramet checkpoints` works without `ramet[train]`
    from torch import Tensor

logger = logging.getLogger(__name__)
STATE = "trainer_state.json"
LAYOUT = "layout.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"  # of LoRA, as peft names it
FSDP_FOLDERS = ("pytorch_model_fsdp_0", "optimizer_0")
BROKEN = (OSError, ValueError, KeyError, AttributeError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile)
_FOLDER = re.compile(r"checkpoint-(\d+)")


def newest_complete(folder: Path, layout: SftLayout | None = None) -> Path | None:
    """The complete checkpoint of the most steps, or None. Incomplete ones are logged and passed over."""
    layout = layout or SftLayout()
    for step, checkpoint in sorted(_checkpoints(folder), reverse=True):
        problem = incomplete(checkpoint, step, layout)
        if problem is None:
            return checkpoint
        logger.warning("checkpoint %s is not complete and is passed over: %s", checkpoint, problem)
    return None


def chosen_checkpoint(folder: Path, step: int | None = None) -> Path:
    """The complete checkpoint of `step`; without one the checkpoint of the lowest held-out loss up to the newest one,
    or the newest. Only reads, since the run may still be running. Raises `ConfigError`.
    """
    layout, steps = SftLayout.read(folder), dict(_checkpoints(folder))
    if step is None:
        newest = newest_complete(folder, layout)
        if newest is None:
            raise ConfigError(f"{folder} has no complete checkpoint; with sft.trainer.save_steps they come earlier")
        best = json.loads((newest / STATE).read_text(encoding="utf-8")).get("best_global_step")
        return steps[best] if best in steps and incomplete(steps[best], best, layout) is None else newest
    if step not in steps:
        there = ", ".join(map(str, sorted(steps))) or "none"
        raise ConfigError(f"--step={step}: no such checkpoint in {folder}; there: {there}")
    if (problem := incomplete(steps[step], step, layout)) is not None:
        raise ConfigError(f"{steps[step]}: not complete: {problem}")
    return steps[step]


def weights_of(checkpoint: Path) -> dict[str, Tensor]:
    """All weights in a complete checkpoint, whatever its strategy; with LoRA the adapter's, under peft's names.

    Raises `ConfigError`.
    """
    from safetensors.torch import load_file  # torch, as below

    from ramet.models.weight_files import WeightFiles
    from ramet.policy.checkpoint.dcp import read_whole
    from ramet.policy.errors import CheckpointError

    layout = SftLayout.read(checkpoint.parent)
    try:
        if layout.strategy is Strategy.FSDP:
            return read_whole(checkpoint / FSDP_FOLDERS[0], "model.")
        if layout.lora_rank:
            return load_file(checkpoint / ADAPTER_WEIGHTS)
    except (CheckpointError, OSError) as error:
        raise ConfigError(f"{checkpoint}: {error}") from error
    return dict(WeightFiles(checkpoint))


def remove_oldest(folder: Path, saved: int, *, keep: int, best: int | None = None) -> None:
    """Delete all checkpoints up to the one just `saved` but the `keep` of the most steps and the one of step `best`.
    Ones of more steps, which were passed over, stay. One that cannot be deleted is warned of and stays.
    """
    for step, checkpoint in sorted(pair for pair in _checkpoints(folder) if pair[0] <= saved)[:-keep]:
        if step == best:
            continue
        try:
            remove_folder(checkpoint)
        except OSError as error:
            logger.warning("old checkpoint not deleted: %s", os_error_text(error))


def finish_deleting(folder: Path) -> None:
    """Delete what `remove_oldest` of a process that was killed has left."""
    for removed in finish_removals(folder, _FOLDER):
        logger.info("%s: left by an interrupted deletion, deleted", removed)


def step_of(checkpoint: Path | None) -> int:
    """Optimiser steps done at this checkpoint, 0 for none."""
    match = _FOLDER.fullmatch(checkpoint.name) if checkpoint is not None else None
    return int(match[1]) if match else 0


def list_sft_checkpoints(folder: Path) -> list[CheckpointEntry]:
    """The checkpoints in a run's folder, fewest steps first. Reads every file, and changes nothing.

    Trainer writes its state last, so a checkpoint without one is what a killed save left, or is being written. Raises
    `ConfigError` if the note of who sharded them cannot be read.
    """
    layout = SftLayout.read(folder)
    entries = (_entry(path, step, layout) for step, path in sorted(_checkpoints(folder)))
    return mark_newest([entry for entry in entries if entry is not None])


def _entry(checkpoint: Path, step: int, layout: SftLayout) -> CheckpointEntry | None:
    leftover = not (checkpoint / STATE).exists()
    problem = None if leftover else incomplete(checkpoint, step, layout)
    problems = [] if problem is None else [f"{checkpoint}: {problem}"]
    return measured(checkpoint, step=step, leftover=leftover, problems=problems)


def incomplete(checkpoint: Path, step: int, layout: SftLayout) -> str | None:
    """Why this checkpoint cannot be resumed, None if it can."""
    try:
        state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
        saved_step = state.get("global_step")
    except (OSError, ValueError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    if saved_step != step:
        return f"{STATE} is of step {saved_step}"
    return layout.problem(checkpoint)


def _checkpoints(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in folder.glob("checkpoint-*"):
        match = _FOLDER.fullmatch(path.name)
        if match and path.is_dir():
            yield int(match[1]), path


@dataclass(frozen=True, slots=True, kw_only=True)
class SftLayout:
    """How a checkpoint is sharded, over how many ranks. Only a training of the same layout can continue from it."""

    strategy: Strategy = Strategy.NONE
    workers: int = 1
    lora_rank: int = 0  # over 0: only the adapter is in them

    @classmethod
    def of(cls, config: Config) -> SftLayout:
        workers, sft = config.cluster.policy_workers, config.sft
        return cls(strategy=sft.strategy, workers=workers, lora_rank=sft.lora_rank)

    @classmethod
    def read(cls, folder: Path) -> SftLayout:
        """Read the layout of the checkpoints in `folder`. Raises `ConfigError`."""
        file = folder / LAYOUT
        try:
            values = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            return cls(
                strategy=Strategy(values.get("strategy", Strategy.NONE)),
                workers=int(values.get("workers", 1)),
                lora_rank=int(values.get("lora_rank", 0)),
            )
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{file}: does not say how the checkpoints were written: {error}") from error

    def check(self, folder: Path) -> list[str]:
        """Why a training of this layout cannot work with the checkpoints in `folder`."""
        if not any(folder.glob("checkpoint-*")):
            return []
        try:
            before = SftLayout.read(folder)
        except ConfigError as error:
            return [str(error)]
        if before == self:
            return []
        return [
            f"sft: the checkpoints in {folder} are of {before}, and now it is {self}: they cannot be taken over; run "
            "as before, or choose another run.name"
        ]

    def keep(self, folder: Path) -> None:
        """Note for later processes that the checkpoints in `folder` are of this layout; no note: of one process."""
        if self == SftLayout():
            (folder / LAYOUT).unlink(missing_ok=True)
        else:
            write_file(folder / LAYOUT, json.dumps(asdict(self)) + "\n")

    def __str__(self) -> str:
        lora = f" and sft.lora_rank={self.lora_rank}" if self.lora_rank else ""
        return f"sft.strategy={self.strategy} with cluster.policy_workers={self.workers}{lora}"

    def problem(self, checkpoint: Path) -> str | None:
        """Missing or broken files, None if all are intact. Reads every file."""
        try:
            for archive in self._archives(checkpoint):
                with zipfile.ZipFile(archive) as opened:
                    bad = opened.testzip()
                if bad is not None:
                    return f"{archive.relative_to(checkpoint)}: bad checksum of {bad}"
            if self.strategy is Strategy.NONE:
                _read_weights(checkpoint, ADAPTER_WEIGHTS if self.lora_rank else WEIGHTS)
            if self.strategy is Strategy.FSDP:
                for name in FSDP_FOLDERS:
                    _read_items(checkpoint / name)
        except BROKEN as error:
            return f"{type(error).__name__}: {error}"
        return None

    def _archives(self, checkpoint: Path) -> Iterator[Path]:
        """States that torch.save wrote as one file each."""
        yield checkpoint / "scheduler.pt"
        states = ["rng_state.pth"] if self.workers == 1 else [f"rng_state_{rank}.pth" for rank in range(self.workers)]
        yield from (checkpoint / state for state in states)
        if self.strategy is Strategy.NONE:
            yield checkpoint / "optimizer.pt"
        elif self.strategy is not Strategy.FSDP:
            yield from self._deepspeed(checkpoint)

    def _deepspeed(self, checkpoint: Path) -> Iterator[Path]:
        folder = checkpoint / (checkpoint / "latest").read_text(encoding="utf-8").strip()
        yield from sorted(folder.glob("*.pt"))
        for rank in range(self.workers):
            shard = f"zero_pp_rank_{rank}_mp_rank_00"
            if self.strategy is not Strategy.ZERO0 and not (folder / f"bf16_{shard}_optim_states.pt").exists():
                yield folder / f"{shard}_optim_states.pt"
            if self.strategy in (Strategy.ZERO3, Strategy.ZERO3_OFFLOAD):
                yield folder / f"{shard}_model_states.pt"
        if self.strategy in (Strategy.ZERO0, Strategy.ZERO2):
            yield folder / "mp_rank_00_model_states.pt"


def _read_weights(checkpoint: Path, file: str) -> None:
    from safetensors import SafetensorError, safe_open  # here: `ramet checkpoints` works without `ramet[train]`

    names = [file]
    if (checkpoint / INDEX).exists():
        index = json.loads((checkpoint / INDEX).read_text(encoding="utf-8"))
        names = sorted(set(index["weight_map"].values()))
    for name in names:
        try:
            with safe_open(checkpoint / name, framework="pt") as tensors:
                tensors.keys()
        except SafetensorError as error:
            raise ValueError(f"{name}: {error}") from error


def _read_items(folder: Path) -> None:
    """Each file has the items of one rank, one after another; `.metadata` says where each of them is.

    It is a pickle, which accelerate would let run anything: here it is read with the classes that it is made of, and a
    checkpoint with others is passed over.
    """
    from ramet.policy.checkpoint.dcp import read_contents  # torch, as above

    for item in read_contents(folder).storage_data.values():
        with (folder / item.relative_path).open("rb") as file:
            file.seek(item.offset)
            content = io.BytesIO(file.read(item.length))
        with zipfile.ZipFile(content) as archive:
            bad = archive.testzip()
        if bad is not None:
            raise ValueError(f"{folder.name}/{item.relative_path}: bad checksum of {bad}")
