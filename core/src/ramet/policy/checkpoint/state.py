"""A policy worker's part of a checkpoint: weights, optimiser and random number states, exact to the bit.

Tensors are in the files of torch.distributed.checkpoint under the names of their parameters, so that any number of
ranks finds its part of them. What belongs to one rank is in `rank_00000.pt`, loaded with `weights_only=True`, so that a
checkpoint can run no code. With LoRA only the adapter is kept; the rest is `model.path`'s.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from ramet.config.schema import ModelConfig
from ramet.io.atomic import share_rights
from ramet.io.os_errors import naming, os_error_text
from ramet.models.loading import DTYPES, load_tokenizer
from ramet.policy.checkpoint.dcp import read_tensors, read_whole, shapes, write_tensors
from ramet.policy.checkpoint.store import note_hashes
from ramet.policy.distributed.ranks import gather_on_all
from ramet.policy.errors import CheckpointError
from ramet.policy.host_memory import HostBuffers

logger = logging.getLogger(__name__)
MODEL, OPTIMIZER = "model.", "optimizer."


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A worker's counters."""

    step: int = 0  # training steps done
    bad_steps: int = 0  # non-finite optimiser steps in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """This rank's part of a checkpoint, ready to be written."""

    tensors: dict[str, Tensor]
    own: dict[str, Any]
    rank: int


def stage_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    buffers: HostBuffers | None,
    *,
    rank: int,
    world_size: int,
) -> Staged:
    """The current state, copied into `buffers`, so that training can continue; None: itself, which must not change."""
    tensors = _tensors(model) | _optimizer_tensors(model, optimizer)
    tensors = tensors if buffers is None else buffers.copies(tensors)
    own_state = {"world_size": world_size, "step": progress.step, "bad_steps": progress.bad_steps, "rng": rng_state()}
    return Staged(tensors=tensors, own=own_state, rank=rank)


def write_state(folder: Path, staged: Staged, group: dist.ProcessGroup | None = None) -> None:
    """Write this rank's files to an empty folder. All ranks call it; `group`: these ranks.

    Raises `CheckpointError`, on all ranks if one could not write: their next common write would wait for it.
    """
    write_tensors(folder, staged.tensors, group)  # makes the folder
    problem, own_file = "", folder / _rank_file(staged.rank)
    try:
        with naming(own_file), own_file.open("wb") as file:
            torch.save(staged.own, file)
            file.flush()
            os.fsync(file.fileno())  # it may be on another machine than the process that writes the manifest
        written = [path.name for path in folder.glob(f"__{staged.rank}_*")]  # by torch.distributed.checkpoint
        note_hashes(folder, staged.rank, [*written, own_file.name])
    except OSError as error:
        problem = f"{folder}: could not write the policy: {os_error_text(error)}"
    problems = [problem] if group is None else gather_on_all(problem, group)
    if first_problem := next(filter(None, problems), None):
        raise CheckpointError(first_problem)


def load_state(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    rank: int,
    world_size: int,
    seed: int,
    group: dist.ProcessGroup | None = None,
) -> Progress:
    """Read everything back in place. The optimiser keeps this run's options. All ranks call it.

    If another number of ranks wrote it, random numbers begin again from (seed, step, rank). Raises `CheckpointError`,
    the same on all ranks.
    """
    problem, tensors, own_state = "", {}, {}
    try:
        own_state = _read_own(folder, rank)
        tensors = _load_targets(folder, model, optimizer)
    except CheckpointError as error:
        problem = str(error)
    if problems := [text for text in (gather_on_all(problem) if world_size > 1 else [problem]) if text]:
        raise CheckpointError(problems[0])
    read_tensors(folder, tensors, group)
    progress = Progress(step=int(own_state["step"]), bad_steps=int(own_state["bad_steps"]))
    if own_state["world_size"] == world_size:
        set_rng_state(own_state["rng"])
    else:
        seed_rng(f"{seed}:{progress.step}:{rank}")
        logger.info(
            "%s was written by %d policy ranks, now there are %d: weights and optimiser are the same, random numbers "
            "begin again from seed %d, step %d and rank",
            folder,
            own_state["world_size"],
            world_size,
            seed,
            progress.step,
        )
    return progress


def rng_state() -> dict[str, Any]:
    """States of Python's, numpy's and torch's random number generators, in types that `weights_only` loading allows."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """The inverse of `rng_state`."""
    random.setstate(state["python"])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])  # a process may see fewer GPUs now


def seed_rng(key: str) -> None:
    """Seed all of them: the same key gives the same numbers."""
    number = int.from_bytes(hashlib.sha256(f"generators:{key}".encode()).digest()[:7], "big")
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)


def saved_weights(folder: Path) -> dict[str, Tensor]:
    """The complete weights of a checkpoint; with LoRA the adapter's. Needs no other rank. Raises `CheckpointError`."""
    return read_whole(folder, MODEL)


def export_model(
    folder: Path, model: PreTrainedModel, weights: Iterable[tuple[str, Tensor]], config: ModelConfig, *, rank: int
) -> None:
    """A Hugging Face folder in `model.dtype`, written by rank 0. All ranks iterate over `weights`, which are full
    tensors.

    An `OSError` names the folder.
    """
    dtype = DTYPES[config.dtype]
    tied = model.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(tied.items())}
    tensors = {}
    for name, tensor in weights:
        if rank == 0 and (name not in tied or first[id(tied[name])] == name):
            tensors[name] = tensor.to("cpu", dtype)
    if rank == 0:
        plain = _plain(model, dtype)
        with naming(folder):
            plain.save_pretrained(folder, state_dict=tensors)
            load_tokenizer(config).save_pretrained(folder)
            share_rights(folder)


def _plain(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The architecture without weights, shards, adapters and the choice of attention: what describes the folder."""
    config = deepcopy(model.config)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        plain: PreTrainedModel = type(model)(config).to(dtype)  # type: ignore[arg-type]
    plain.generation_config = model.generation_config
    return plain


def _rank_file(rank: int) -> str:
    return f"rank_{rank:05d}.pt"


def _read_own(folder: Path, rank: int) -> dict[str, Any]:
    """A rank that did not exist when the checkpoint was written reads rank 0's file."""
    file = folder / _rank_file(rank)
    file = file if file.exists() else folder / _rank_file(0)
    try:
        own_state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        missing = {"world_size", "step", "bad_steps", "rng"} - own_state.keys()
    except (OSError, ValueError, RuntimeError, EOFError, AttributeError, UnpicklingError) as error:
        raise CheckpointError(f"{folder}: could not read the policy: {file.name}: {error}") from error
    if missing:
        raise CheckpointError(f"{folder}: could not read the policy: {file.name} has no {', '.join(sorted(missing))}")
    return own_state


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Trained parameters, tied ones once, and the buffers of the `state_dict` if all parameters are trained."""
    parameters = dict(model.named_parameters())
    trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    persistent = model.state_dict().keys() if len(trained) == len(parameters) else set()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
    return {MODEL + name: tensor.detach() for name, tensor in (trained | buffers).items()}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """State by parameter name; nothing before the first step."""
    return {
        f"{OPTIMIZER}{name}.{key}": value
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for key, value in sorted(optimizer.state[parameter].items())
    }


def _load_targets(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The tensors that `folder` is read into: the model's own, and new ones in the optimiser."""
    saved_shapes = shapes(folder)
    model_tensors = _tensors(model)
    saved = {name for name in saved_shapes if name.startswith(MODEL)}
    if model_tensors.keys() != saved:
        differing = [name.removeprefix(MODEL) for name in sorted(model_tensors.keys() ^ saved)[:3]]
        raise CheckpointError(f"{folder}: contains another model than model.path; differing names: {differing}")
    for name, tensor in model_tensors.items():
        if tensor.shape != saved_shapes[name].size:
            raise CheckpointError(
                f"{folder}: {name.removeprefix(MODEL)} has shape {list(saved_shapes[name].size)}, model.path has "
                f"{list(tensor.shape)}"
            )
    optimizer.state.clear()
    for name, parameter in model.named_parameters():
        prefix = f"{OPTIMIZER}{name}."
        kept = {key.removeprefix(prefix): entry for key, entry in saved_shapes.items() if key.startswith(prefix)}
        for key, entry in kept.items():
            like = entry.size == parameter.shape and parameter.dim()
            new = torch.zeros_like(parameter) if like else torch.zeros(entry.size, dtype=entry.properties.dtype)
            if not like and optimizer.defaults["fused"]:
                new = new.to(parameter.device)  # a fused step counts there, others in host memory
            optimizer.state[parameter][key] = new.detach()
    return model_tensors | _optimizer_tensors(model, optimizer)
