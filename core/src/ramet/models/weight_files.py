"""The weight files of a model folder: what can be seen of them without reading the weights."""

from __future__ import annotations

import json
from pathlib import Path

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_LENGTH = 8  # bytes at the beginning of a safetensors file: the length of its header


def check_weights(folder: Path) -> list[str]:
    """Files that are missing or cut short."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return _check_files(folder, [name])
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _check_index(index)
    return [f"model.path: {folder} has no weights; looked for {', '.join(WEIGHTS)} and their .index.json"]


def read_json(file: Path) -> object:
    """None for a file that cannot be read or is no JSON."""
    try:
        content: object = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content


def _check_index(index: Path) -> list[str]:
    content = read_json(index)
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not names:
        return [f"model.path: {index} has no weight_map"]
    files = sorted({str(name) for name in names.values()})
    missing = [name for name in files if not (index.parent / name).is_file()]
    problems = [f"model.path: {index.name} names files that are missing: {', '.join(missing)}"] if missing else []
    return problems + _check_files(index.parent, [name for name in files if name not in missing])


def _check_files(folder: Path, names: list[str]) -> list[str]:
    problems = (_check_file(folder / name) for name in names)
    return [problem for problem in problems if problem]


def _check_file(file: Path) -> str | None:
    """A safetensors file says in its header where its last tensor ends; other kinds say nothing so cheaply."""
    size = file.stat().st_size
    if file.suffix != ".safetensors":
        return None if size else f"model.path: {file} is empty"
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(_LENGTH), "little")
            header = json.loads(opened.read(min(length, size)))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        return f"model.path: {file} is no readable safetensors file ({size} bytes): {error}"
    whole = _LENGTH + length + max(ends, default=0)
    return None if size == whole else f"model.path: {file} has {size} bytes, its header says {whole}; fetch it again"
