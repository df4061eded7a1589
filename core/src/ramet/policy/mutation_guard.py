"""Whether a plugin changed its inputs: the core continues with the same tensors, and nothing else would show it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from torch import Tensor

from ramet.errors import PluginError


@contextmanager
def unchanged(batch: Any, who: str) -> Iterator[None]:
    """Raise `PluginError` if a tensor of the dataclass `batch` is changed in place within the block.

    torch counts such changes itself, so this costs nothing.
    """
    before = _versions(batch)
    yield
    changed = [name for name, version in _versions(batch).items() if version != before[name]]
    if changed:
        raise PluginError(f"{who} changed its inputs in place: {', '.join(changed)}; work on copies")


def _versions(batch: Any) -> dict[str, int]:
    values = ((field.name, getattr(batch, field.name)) for field in fields(batch))
    return {name: value._version for name, value in values if isinstance(value, Tensor)}
