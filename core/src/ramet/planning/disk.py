"""Bytes of disk for a training's checkpoints and its model, before anything is written.

A checkpoint has the trained parameters and AdamW's two moments of them, in float32: 12 bytes a parameter. With LoRA
only the adapter's parameters count. A critic adds the same. DeepSpeed keeps the weights of its passes in addition.

A resume of `ramet train` compares the hash of every file: each rank of those that it reads, all at once.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from ramet.config.schema import Dtype
from ramet.planning.memory import Inputs, MemoryPlan, critic_shape
from ramet.planning.memory_policy import MASTER, TrainedModel
from ramet.planning.memory_sft import SftInputs
from ramet.planning.model_shape import count
from ramet.planning.run_plan import nearest_folder
from ramet.types import Need

STATES = 3  # of a trained parameter: itself and two moments
GB = 10**9
SHA256_BYTES_PER_S = GB  # of a core of an AMD EPYC with other work on it (November 2026); 1.8 GB/s without


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPlan:
    """Bytes on disk, about."""

    checkpoint: int
    kept: int  # checkpoints, the best included
    model: int  # the folder model/
    there: int = 0  # of these, in the run's directory already
    verifiers: int = 0  # ranks that hash a checkpoint at a resume; 0: none is hashed
    free: int | None  # on the disk of the run's directory; None: it is of another machine

    @property
    def need(self) -> int:
        """Bytes at most: a checkpoint is complete before the oldest is deleted."""
        return self.checkpoint * (self.kept + bool(self.kept)) + self.model

    def __str__(self) -> str:
        checkpoints = (
            f"{self.kept} checkpoint{'s' * (self.kept != 1)} of about {_gb(self.checkpoint)} kept, and one more "
        )
        checkpoints += "while it is written; "
        free = f", of which {_gb(self.there)} are there" if self.there else ""
        free += "" if self.free is None else f"; {_gb(self.free)} free"
        line = f"{checkpoints if self.kept else ''}model/ {_gb(self.model)}; {_gb(self.need)} in all{free}"
        missing = self.need - self.there - (self.free or 0)
        if self.free is not None and missing > 0:
            fewer = ": free some space, or keep fewer checkpoints" if self.kept else ": free some space"
            line += f"\nwarning: the disk has {_gb(missing)} less than that{fewer}"
        return line + self._resume()

    def _resume(self) -> str:
        """Say how long a resume hashes, if a checkpoint is kept."""
        if not self.verifiers or not self.kept:
            return ""
        seconds = self.checkpoint / self.verifiers / SHA256_BYTES_PER_S
        took = "under a second" if seconds < 1 else f"about {seconds:,.0f} s"
        by = "1 rank" if self.verifiers == 1 else f"{self.verifiers} ranks"
        return (
            f"\na resume hashes {_gb(self.checkpoint)}, with {by} of {_gb(SHA256_BYTES_PER_S)}/s each in {took}; a "
            "file system that gives less bounds it"
        )


def plan_disk(memory: MemoryPlan | str, folder: Path, *, kept: int) -> str:
    """Say what a run in `folder` takes on disk; empty where the model's shapes are not known."""
    if isinstance(memory, str):
        return ""
    inputs = memory.inputs
    free = shutil.disk_usage(nearest_folder(folder)).free if inputs.machine.written is None else None
    size = 2 if inputs.config.model.dtype is Dtype.BFLOAT16 else MASTER
    model = size * inputs.shape.n_parameters
    verifiers = 0 if isinstance(inputs, SftInputs) else memory.placement.ranks  # `ramet sft` hashes no checkpoint
    plan = DiskPlan(checkpoint=checkpoint_bytes(inputs), kept=kept, model=model, free=free, verifiers=verifiers)
    written = sum(file.stat().st_size for name in ("checkpoints", "model") for file in (folder / name).rglob("*"))
    return str(replace(plan, there=0 if free is None else min(written, plan.need)))


def checkpoint_bytes(inputs: Inputs) -> int:
    """Bytes of the tensors in one checkpoint, over all ranks."""
    if isinstance(inputs, SftInputs):
        whole = inputs.n_trained + count(inputs.model.frozen)
        return STATES * MASTER * inputs.n_trained + (inputs.model.computed * whole if inputs.deepspeed else 0)
    models = [TrainedModel(shape=inputs.shape, config=inputs.config, ranks=1, cuda=False)]
    if Need.VALUES in inputs.needs:
        values = critic_shape(inputs.shape)
        head = ((1, values.hidden),)
        models.append(TrainedModel(shape=values, config=inputs.config, ranks=1, cuda=False, head=head))
    return STATES * MASTER * sum(count(model.trained) for model in models)


def _gb(size: float) -> str:
    return f"{size / GB:.3g} GB"
