"""A model's safetensors, read by parts: names and shapes come from the files' heads, values only when asked for.

Values are mapped memory, so processes of one machine that read the same files share one copy of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ramet.errors import ConfigError

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
COMPUTED = "rotary_emb.inv_freq"  # older files have it as a weight; models make it from their configuration


class WeightFiles:
    """The safetensors of a Hugging Face folder."""

    def __init__(self, folder: Path) -> None:
        """Reads the heads. Raises `ConfigError` if they cannot be read or are absent."""
        self._folder = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, Path] = {}
        for file in self._named_files():
            with _reported(self._folder), safe_open(file, framework="pt") as opened:
                for name in opened.keys():
                    if not name.endswith(COMPUTED):
                        self.shapes[name] = tuple(opened.get_slice(name).get_shape())
                        self._files[name] = file

    @staticmethod
    def are_in(folder: Path) -> bool:
        """Older folders have pickles instead."""
        return (folder / INDEX).is_file() or (folder / WHOLE).is_file()

    def hold(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether all of these tensors are in the files, with these shapes, and have a first axis."""
        return all(shape and self.shapes.get(name) == shape for name, shape in shapes.items())

    def rows(self, wanted: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, Tensor]]:
        """Yield names with rows `start` to `end` of the first axis, in the files' type; each file is opened once."""
        by_file: dict[Path, list[str]] = {}
        for name in wanted:
            by_file.setdefault(self._files[name], []).append(name)
        for file, names in by_file.items():
            with _reported(self._folder), safe_open(file, framework="pt") as opened:
                for name in names:
                    start, end = wanted[name]
                    yield name, opened.get_slice(name)[start:end]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors, one at a time."""
        for file in sorted(set(self._files.values())):
            with _reported(self._folder), safe_open(file, framework="pt") as opened:
                for name in (name for name, holder in self._files.items() if holder == file):
                    yield name, opened.get_tensor(name)

    def _named_files(self) -> list[Path]:
        index = self._folder / INDEX
        with _reported(self._folder):
            names = json.loads(index.read_text())["weight_map"].values() if index.is_file() else [WHOLE]
            return [self._folder / name for name in sorted(set(names))]


@contextmanager
def _reported(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ConfigError(f"{folder}: its safetensors files cannot be read: {error}") from error
