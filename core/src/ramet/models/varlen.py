"""`model.attention=varlen`: torch's own attention over sequences of different lengths (torch.nn.attention.varlen).

The kernel is given a packed row with the borders of its sequences, so there is no mask and the cost is not that of the
square of the row, as with the package flash-attn. It has kernels for half precision on CUDA alone and was not run
there; tests replace the kernel.

Shapes: B rows of S positions; D size of a head.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

from ramet.errors import ConfigError

VARLEN = "varlen"
CAUSAL = (-1, 0)  # the window: all positions before, none after


@dataclass(frozen=True, slots=True)
class Borders:
    """Where the n sequences of the flat `[B * S]` begin and end, and the length of the longest."""

    starts: Tensor  # [n + 1] int32; the last is B * S
    longest: int


def has_varlen() -> bool:
    """Whether this torch has it, with the options that are used here."""
    if find_spec("torch.nn.attention.varlen") is None:
        return False
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters


def register() -> None:
    """Let transformers find it by its name. No mask is built for attentions that it does not know itself."""
    AttentionInterface.register(VARLEN, _Attention())


def borders(position_ids: Tensor) -> Borders:
    """A sequence begins wherever positions `[B, S]` begin again at 0; rows follow each other in the flat order."""
    flat = position_ids.flatten()
    starts = torch.nonzero(flat == 0).flatten()
    ends = torch.cat([starts, starts.new_tensor([len(flat)])])
    return Borders(ends.int(), int(ends.diff().max()))


class _Attention:
    """Keeps the borders of the current forward pass: all layers are given the same positions, and reading them waits
    for the device.
    """

    def __init__(self) -> None:
        self._positions: Tensor | None = None
        self._borders: Borders | None = None

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,  # [B, heads, S, D]
        key: Tensor,  # [B, key heads, S, D]
        value: Tensor,  # [B, key heads, S, D]
        attention_mask: Tensor | None,
        *,
        scaling: float,
        position_ids: Tensor,
        sliding_window: int | None = None,
        **_: Any,  # transformers gives every attention more than it reads
    ) -> tuple[Tensor, None]:
        if sliding_window is not None:
            raise ConfigError(
                "model.attention: varlen computes no sliding windows; allowed for this model: sdpa, eager"
            )
        if position_ids is not self._positions or self._borders is None:
            rows = position_ids.expand(query.shape[0], -1)  # without its own, a model counts once for all rows
            self._positions, self._borders = position_ids, borders(rows)
        # [B * S, heads, D] each; rotary embeddings give float32 under autocast
        queries, keys, values = (_flat(x).to(value.dtype) for x in (query, key, value))
        mixed = attend(queries, keys, values, self._borders, self._borders, scaling)
        # [B, S, heads, D]
        return mixed.view(query.shape[0], query.shape[2], *mixed.shape[1:]), None


def attend(query: Tensor, key: Tensor, value: Tensor, own: Borders, seen: Borders, scaling: float) -> Tensor:
    """Sequences one after another, `[S, heads, D]` each; queries and keys may be of different lengths.

    `own` are the borders of the queries, `seen` those of keys and values, of as many sequences. The last query of a
    sequence sees all of its keys, and each before it one less. Returns `[S, heads, D]` of the queries.
    """
    return _kernel(
        query,
        key,
        value,
        own.starts,
        seen.starts,
        own.longest,
        seen.longest,
        scale=scaling,
        window_size=CAUSAL,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _flat(x: Tensor) -> Tensor:
    """`[B, heads, S, D]` as `[B * S, heads, D]`."""
    return x.transpose(1, 2).flatten(0, 1)


def _kernel(*arguments: Any, **options: Any) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    return cast("Tensor", varlen_attn(*arguments, **options))  # a tuple only if more is requested
