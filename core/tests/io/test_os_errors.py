"""Errors of the system as one line, and those that libraries raise instead, on a real full disk."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from ramet.io.os_errors import naming, os_error_text

FULL = "No space left on device; free some space there"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), f"a/b: {FULL}"),
        (OSError(errno.ENOSPC, "No space left on device"), FULL),
        (
            PermissionError(errno.EACCES, "Permission denied", Path("a")),
            "a: Permission denied; give this user the right to it, or choose another folder",
        ),
        (OSError(errno.EXDEV, "Invalid cross-device link", "a", None, "b"), "a -> b: Invalid cross-device link"),
        (OSError("a library's\n  own words"), "a library's own words"),
        (OSError(errno.EISDIR, "Is a directory", "a\nb"), "a b: Is a directory"),
    ],
)
def test_a_line_has_path_reason_and_what_helps(error: OSError, text: str) -> None:
    assert os_error_text(error) == text


def write_safetensors(path: Path) -> None:
    save_file({"a": torch.zeros(10_000)}, path)


def write_with_torch(path: Path) -> None:
    torch.save({"a": torch.zeros(10_000)}, path)


def write_distributed(path: Path) -> None:
    save({"a": torch.zeros(10_000)}, storage_writer=FileSystemWriter(path), no_dist=True)


def write_bytes(path: Path) -> None:
    with path.open("wb") as file:
        file.write(bytes(10_000))


@pytest.mark.parametrize("write", [write_safetensors, write_with_torch, write_distributed, write_bytes])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_whatever_writes_to_a_full_disk_ends_in_one_line_with_the_path(
    small_disk: Any, write: Callable[[Path], None]
) -> None:
    path = small_disk.folder / "there"
    with naming(path):
        write(path)  # with room it works
    if path.is_file():
        path.unlink()
    small_disk.fill()
    path = small_disk.folder / "new"
    with pytest.raises(OSError) as raised, naming(path):
        write(path)
    assert raised.value.errno == errno.ENOSPC
    assert os_error_text(raised.value) == f"{path}: {FULL}"


def test_a_library_that_writes_where_there_is_room_but_a_limit_says_how_much_is_free(tmp_path: Path) -> None:
    with pytest.raises(OSError) as raised, naming(tmp_path):
        raise RuntimeError("[enforce] PytorchStreamWriter failed writing file data/0: file write failed\nframe #0")
    text = os_error_text(raised.value)
    assert text.startswith(
        f"{tmp_path}: cannot be written (PytorchStreamWriter failed writing file data/0: file write failed); "
    )
    assert text.endswith(" bytes are free there; look at quota, file size limit and disk")


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), KeyError("a"), OSError(errno.EIO, "bad", "other")])
def test_other_errors_and_paths_that_are_known_pass_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, naming(Path("here")):
        raise error
    assert raised.value is error
