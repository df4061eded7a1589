"""Parts of safetensors are read without the rest; what is not there is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ramet.errors import ConfigError
from ramet.models.weight_files import INDEX, WHOLE, WeightFiles

A, B = torch.arange(12.0).view(4, 3), torch.arange(5.0)


def folder_of(path: Path, *, files: int) -> Path:
    if files == 1:
        save_file({"a": A, "b": B, "x.rotary_emb.inv_freq": B.clone()}, path / WHOLE)
    else:
        save_file({"a": A}, path / "one.safetensors")
        save_file({"b": B}, path / "two.safetensors")
        (path / INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    return path


@pytest.mark.parametrize("files", [1, 2])
def test_rows_and_whole_tensors_come_by_name(files: int, tmp_path: Path) -> None:
    assert not WeightFiles.are_in(tmp_path)
    found = WeightFiles(folder_of(tmp_path, files=files))
    assert WeightFiles.are_in(tmp_path) and found.shapes == {"a": (4, 3), "b": (5,)}
    rows = dict(found.rows({"b": (3, 5), "a": (1, 2)}))
    assert rows["a"].equal(A[1:2]) and rows["b"].equal(B[3:])
    assert [(name, tensor.tolist()) for name, tensor in found] == [("a", A.tolist()), ("b", B.tolist())]


def test_models_are_held_only_with_their_names_and_shapes(tmp_path: Path) -> None:
    found = WeightFiles(folder_of(tmp_path, files=1))
    assert found.hold({"a": (4, 3)})
    assert not found.hold({"a": (3, 4)}) and not found.hold({"c": (1,)})


def test_a_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    folder_of(tmp_path, files=2)
    (tmp_path / "two.safetensors").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=f"^{tmp_path}: its safetensors files cannot be read: "):
        WeightFiles(tmp_path)
    (tmp_path / "one.safetensors").unlink()
    with pytest.raises(ConfigError, match="No such file"):
        WeightFiles(tmp_path)
