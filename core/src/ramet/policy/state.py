"""The files of a policy worker in a checkpoint: weights, optimiser and random number states, exact to the bit.

Weights are safetensors; the rest is loaded with `weights_only=True`, so that a checkpoint can run no code.
"""

from __future__ import annotations

import copy
import random
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from ramet.config.schema import ModelConfig
from ramet.models.loading import DTYPES, load_tokenizer
from ramet.policy.errors import CheckpointError

WEIGHTS = "weights.safetensors"


def _rank_file(rank: int) -> str:
    return f"rank_{rank:05d}.pt"


def save_state(
    folder: Path,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    *,
    rank: int,
    world_size: int,
    bad: int,
) -> None:
    """Write this rank's files. Rank 0 writes the weights. Raises `CheckpointError`."""
    state = {
        "world_size": world_size,
        "bad_steps": bad,
        "optimizer": optimizer.state_dict()["state"],
        "rng": rng_state(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if rank == 0:
            save_file({name: tensor.contiguous() for name, tensor in _tensors(model).items()}, folder / WEIGHTS)
        torch.save(state, folder / _rank_file(rank))
    except (OSError, RuntimeError, SafetensorError) as error:  # torch reports a full disk as a RuntimeError
        raise CheckpointError(f"{folder}: could not write the policy: {error}") from error


def load_state(
    folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, *, rank: int, world_size: int
) -> int:
    """Read them back in place and return the count of bad steps. The optimiser's options stay those of this run."""
    try:
        tensors = load_file(folder / WEIGHTS)
        state = torch.load(folder / _rank_file(rank), map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, SafetensorError, UnpicklingError) as error:
        raise CheckpointError(f"{folder}: could not read the policy: {error}") from error
    if state["world_size"] != world_size:
        raise CheckpointError(f"{folder}: written by {state['world_size']} ranks, this run has {world_size}")
    own = _tensors(model)
    if own.keys() != tensors.keys():
        raise CheckpointError(
            f"{folder}: holds another model than model.path; differing names: {sorted(own.keys() ^ tensors.keys())[:3]}"
        )
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            raise CheckpointError(
                f"{folder}: {name} has shape {list(tensors[name].shape)}, model.path has {list(tensor.shape)}"
            )
        tensor.copy_(tensors[name])
    optimizer.load_state_dict({"state": state["optimizer"], "param_groups": optimizer.state_dict()["param_groups"]})
    set_rng_state(state["rng"])
    return int(state["bad_steps"])


def export_model(folder: Path, model: PreTrainedModel, config: ModelConfig) -> None:
    """A Hugging Face folder in `model.dtype`."""
    dtype = DTYPES[config.dtype]
    wanted = model if model.dtype == dtype else copy.deepcopy(model).to(dtype)  # type: ignore[arg-type]
    wanted.save_pretrained(folder)
    load_tokenizer(config).save_pretrained(folder)


def rng_state() -> dict[str, Any]:
    """States of python's, numpy's and torch's generators, in types that `weights_only` loading allows."""
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
        torch.cuda.set_rng_state_all(state["cuda"])


def _tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Parameters, tied ones once, and the buffers that belong to the model's state."""
    persistent = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
    return {name: tensor.detach() for name, tensor in [*model.named_parameters(), *buffers.items()]}
