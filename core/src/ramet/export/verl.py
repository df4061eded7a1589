"""Reading the FSDP shards of a verl checkpoint, the layout that users of the released ARPO have.

    actor/model_world_size_W_rank_R.pt   one dictionary per rank: name -> DTensor, or plain tensor
    actor/huggingface/                   config.json, tokenizer

A DTensor sharded along dimension 0 is put together from the ranks in order until its rows are complete: with one mesh
dimension those are all ranks, with two (replicas x shards) the first replica. Files are loaded with `weights_only=True`
and can run no code; no process group is needed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor  # also lets `weights_only` loading accept its parts
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from ramet.errors import ConfigError, raise_all

FILE = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
LAYOUTS = "sharded along dimension 0, over ranks or over the ranks of each replica"


def actor_folder(folder: Path) -> Path:
    """The folder of the actor's shards: this one, or `actor` in it, as in the folder of a step."""
    inside = folder / "actor"
    return inside if inside.is_dir() and not any(folder.glob("model_world_size_*_rank_*.pt")) else folder


def shard_files(folder: Path) -> list[Path]:
    """One file per rank, in order. Raises `ConfigError` for a folder without shards and for an incomplete set."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; give the one that holds model_world_size_W_rank_R.pt")
    files = {(int(m[1]), int(m[2])): path for path in folder.iterdir() if (m := FILE.fullmatch(path.name))}
    if not files:
        raise ConfigError(f"{folder} holds no model_world_size_W_rank_R.pt")
    sizes = sorted({size for size, _ in files})
    if len(sizes) > 1:
        raise ConfigError(
            f"{folder} mixes shards of the world sizes {', '.join(map(str, sizes))}; keep the shards of one"
        )
    ranks = {rank for _, rank in files}
    wanted = set(range(sizes[0]))
    if ranks - wanted:
        raise ConfigError(f"{folder}: ranks {_list(ranks - wanted)} do not belong to a world size of {sizes[0]}")
    if wanted - ranks:
        raise ConfigError(
            f"{folder}: of {sizes[0]} ranks {_list(wanted - ranks)} {'is' if len(wanted - ranks) == 1 else 'are'} "
            "missing; copy the shards of all nodes into one folder"
        )
    return [files[sizes[0], rank] for rank in range(sizes[0])]


def model_folder(folder: Path) -> Path:
    """The folder of configuration and tokenizer. Raises `ConfigError`."""
    for candidate in (folder / "huggingface", folder):
        if (candidate / "config.json").is_file():
            return candidate
    raise ConfigError(
        f"{folder} has no huggingface/config.json and no config.json; name the folder of the base model with --model"
    )


def read_shards(folder: Path) -> dict[str, Tensor]:
    """Return the complete tensors by name, as they were stored. Raises `ConfigErrors`."""
    with _quiet_meshes():
        ranks = [_load(file) for file in shard_files(folder)]
    problems = [
        f"{folder}: rank {i} holds other names than rank 0, such as {min(rank.keys() ^ ranks[0].keys())}"
        for i, rank in enumerate(ranks)
        if rank.keys() != ranks[0].keys()
    ]
    raise_all(problems)
    tensors: dict[str, Tensor] = {}
    for name in ranks[0]:
        try:
            tensors[name] = _whole([rank[name] for rank in ranks])
        except (ValueError, RuntimeError) as error:  # of torch: shapes that cannot be joined
            problems.append(f"{folder}: {name}: {error}")
    raise_all(problems)
    return tensors


@contextmanager
def _quiet_meshes() -> Iterator[None]:
    """torch warns for every file that its process groups are missing; nothing here needs them."""
    log = logging.getLogger("torch.distributed.device_mesh")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _load(file: Path) -> Mapping[str, Any]:
    try:
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, ValueError, EOFError, UnpicklingError, AttributeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConfigError(f"{file}: not a shard that can be loaded safely: {first}") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(f"{file}: not a dictionary of tensors, as `model_world_size_…` files are")
    return state


def _whole(parts: Sequence[Tensor]) -> Tensor:
    """Raises `ValueError` for a layout that is not supported and for pieces that do not add up."""
    kinds = {isinstance(part, DTensor) for part in parts}
    if kinds == {False}:
        return torch.cat(list(parts)) if len(parts) > 1 else parts[0]
    if len(kinds) > 1:
        raise ValueError("a DTensor on some ranks and a plain tensor on others")
    placements = _placements(parts[0])
    if any(_placements(part) != placements for part in parts):
        raise ValueError("the ranks differ in how it is sharded")
    local = [_local(part) for part in parts]
    if all(isinstance(placement, Replicate) for placement in placements):
        return local[0]
    *replicas, last = placements
    if (
        not all(isinstance(placement, Replicate) for placement in replicas)
        or not isinstance(last, Shard)
        or last.dim != 0
    ):
        raise ValueError(f"sharded as {', '.join(map(repr, placements))}; can be read: {LAYOUTS}")
    return _joined(local, parts[0].shape, n_shards=None if replicas else len(parts))


def _joined(local: Sequence[Tensor], shape: torch.Size, *, n_shards: int | None) -> Tensor:
    """`n_shards` None: as many as it takes, the others are replicas."""
    if n_shards is None:
        rows, n_shards = 0, 0
        while rows < shape[0] and n_shards < len(local):
            rows += len(local[n_shards])
            n_shards += 1
    whole = torch.cat(list(local[:n_shards]))
    if whole.shape != shape:
        raise ValueError(f"the shards of {n_shards} ranks make {list(whole.shape)}, its shape is {list(shape)}")
    return whole


def _placements(tensor: Any) -> tuple[Placement, ...]:
    placements: tuple[Placement, ...] = tensor._spec.placements
    return placements


def _local(tensor: Any) -> Tensor:
    """Return the local tensor without `to_local()`, which needs the process group."""
    local: Tensor = tensor._local_tensor
    return local


def _list(ranks: set[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))
