"""Notes where the host waits for the device: found on a CPU, where such a wait takes no time.

A GPU computes behind the host, which sends it work ahead. An operation whose result's value or size the host must know
ends that: everything sent before is computed first. Copies from unpinned host memory wait too, and are not found here,
since on a CPU there are none (`torch.cuda.set_sync_debug_mode` finds them on a GPU).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
BY_VALUE = frozenset({  # the value of its input says how large its result is, or what it is in Python
    aten._local_scalar_dense, aten.is_nonzero, aten.equal, aten.allclose, aten.nonzero, aten.nonzero_numpy,
    aten.masked_select, aten._unique, aten._unique2, aten.unique_dim, aten.unique_consecutive,
    aten.unique_dim_consecutive, aten.bincount,
})  # fmt: skip
INDEXED = frozenset({aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_})
METHODS = frozenset({Tensor.tolist, Tensor.numpy, Tensor.cpu})  # on a CPU no operation is called
TORCH = str(Path(torch.__file__).parent)


@contextmanager
def device_waits() -> Iterator[list[str]]:
    """Give a list of the waits in the block, each as `OPERATION at FILE:LINE`, which grows while the block runs.

    Operations of backward passes are included, on the CPU.
    """
    waits: list[str] = []
    with _Methods(waits), _Operations(waits):
        yield waits


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, waits: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._waits = waits

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        operation = func.overloadpacket
        if operation in BY_VALUE or (operation in INDEXED and _by_mask(args)) or _by_repeats(operation, args, kwargs):
            self._waits.append(f"{func} at {_place()}")
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __init__(self, waits: list[str]) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in METHODS:
            self._waits.append(f"Tensor.{func.__name__} at {_place()}")
        return func(*args, **(kwargs or {}))


def _by_mask(args: Sequence[Any]) -> bool:
    """Whether positions are chosen by truth values: their number is the result's size. One value to be written there
    needs no number.
    """
    if len(args) > 2 and args[2].numel() == 1:
        return False
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _by_repeats(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bool:
    """Whether rows are repeated as often as a tensor says, without the size of the result (`output_size`)."""
    return operation is aten.repeat_interleave and (kwargs or {}).get("output_size") is None


def _place() -> str:
    """The innermost line that is not torch's or this file's."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(TORCH) and not file.startswith("<"):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return "a place in torch"
