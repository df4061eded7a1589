"""Named tensors as files of torch.distributed.checkpoint: every rank writes its parts, any number of ranks reads.

torch writes the table of contents (`.metadata`) as a pickle; here only the few classes that it is made of are allowed,
so that a checkpoint can run no code. What differs from one save to the next is left out of it.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ramet.io.os_errors import naming, os_error_text
from ramet.policy.errors import CheckpointError

CONTENTS = ".metadata"
_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_CLASSES = {
    "Metadata", "MetadataIndex", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "StorageMeta",
    "_MEM_FORMAT_ENCODING", "_StorageInfo", "BytesStorageMetadata",
}  # fmt: skip
_TORCH = re.compile(r"Size|serialization\._get_layout|b?float\d+|u?int\d+|bool|strided")


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> None:
    """Every rank of `group` calls it with the same names; None: only this process. Raises `CheckpointError` on all."""
    try:
        with _quiet(), naming(folder):
            save(
                dict(tensors),
                storage_writer=_Writer(folder, overwrite=False),
                process_group=group,
                no_dist=group is None,
            )
    except OSError as error:
        raise CheckpointError(f"{folder}: could not write the policy: {os_error_text(error)}") from error
    except (CheckpointException, RuntimeError) as error:
        raise CheckpointError(f"{folder}: could not write the policy: {_reason(error)}") from error


def shapes(folder: Path) -> dict[str, TensorStorageMetadata]:
    """Names of the tensors in `folder` with their shapes (`.size`) and types. Raises `CheckpointError`."""
    try:
        entries: dict[str, Any] = _Reader(folder).read_metadata().state_dict_metadata
        others = [name for name, entry in entries.items() if not isinstance(entry, TensorStorageMetadata)]
    except (OSError, ValueError, TypeError, AttributeError, EOFError, ImportError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{folder}: could not read the policy: {CONTENTS}: {error}") from error
    if others:
        raise CheckpointError(f"{folder}: could not read the policy: {others[0]} is not a tensor")
    return entries


def read_tensors(folder: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> None:
    """Fill these in place, full or sharded. As `write_tensors`."""
    try:
        with _quiet():
            load(dict(tensors), storage_reader=_Reader(folder), process_group=group, no_dist=group is None)
    except (CheckpointException, OSError, RuntimeError) as error:
        raise CheckpointError(f"{folder}: could not read the policy: {_reason(error)}") from error


def read_whole(folder: Path, prefix: str) -> dict[str, Tensor]:
    """The full tensors whose names begin with `prefix`, under the rest of the name, however many ranks wrote them.

    Raises `CheckpointError`.
    """
    entries = {name: entry for name, entry in shapes(folder).items() if name.startswith(prefix)}
    tensors = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in entries.items()}
    read_tensors(folder, tensors, None)
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


class _Writer(FileSystemWriter):
    def storage_meta(self) -> None:
        """Leave out this folder's name, which will change, and a random number."""


def read_contents(folder: Path) -> Metadata:
    """The table of contents; reading it runs no code, and it names no file outside `folder`.

    Raises `ValueError`, `OSError`, `pickle.UnpicklingError` and any other error of a damaged pickle.
    """
    with (folder / CONTENTS).open("rb") as file:
        contents = _Unpickler(file).load()
    if not isinstance(contents, Metadata):
        raise ValueError(f"contains {type(contents).__name__}, not a table of contents")
    for info in (contents.storage_data or {}).values():
        name = info.relative_path
        if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name:
            raise ValueError(f"names {name!r}, which is not a file of the folder itself")
    return contents


class _Reader(FileSystemReader):
    def read_metadata(self, *args: Any, **named: Any) -> Metadata:
        return read_contents(Path(self.path))


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}".removeprefix("torch.")
        if module in ("pathlib", "pathlib._local") and name == "PosixPath":  # where torch wrote it; never read
            return super().find_class(module, name)
        if (module in _MODULES and name in _CLASSES) or (module.startswith("torch") and _TORCH.fullmatch(full)):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member
        raise pickle.UnpicklingError(f"names {module}.{name}, which a table of contents has no use for")


def _member(enumeration: object, name: str) -> _MEM_FORMAT_ENCODING:
    """Return the member of this name: Python 3.11.2 writes a member of an enumeration as a call of `getattr`.

    Raises `pickle.UnpicklingError` for anything but torch's enumeration of memory formats.
    """
    if enumeration is not _MEM_FORMAT_ENCODING or name not in _MEM_FORMAT_ENCODING.__members__:
        raise pickle.UnpicklingError(f"reads {name!r} of {enumeration!r}, which a table of contents has no use for")
    return _MEM_FORMAT_ENCODING[name]


def _quiet() -> warnings.catch_warnings[None]:
    """torch warns of a save by one process, which is intended."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)


def _reason(error: BaseException) -> str:
    """The first failure of the lowest rank, in one line."""
    if isinstance(error, CheckpointException) and error.failures:
        rank = min(error.failures)
        cause = error.failures[rank][0]
        return f"rank {rank}: {type(cause).__name__}: {' '.join(str(cause).split())}"
    return " ".join(str(error).split())
