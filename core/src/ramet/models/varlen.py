"""`model.attention=varlen`: torch's own attention over sequences of different lengths (torch.nn.attention.varlen).

The kernel gets a packed row with the borders of its sequences. So it needs no mask, and the cost is not the square of
the row, as with the package flash-attn. It has kernels only for half precision on CUDA, where `bench/gpu` compares it
with single rows; tests on a CPU replace the kernel.

Shapes: B rows of S positions; D size of a head.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor
from transformers.modeling_utils import AttentionInterface

from ramet.models.packed_attention import PackedAttention

VARLEN = "varlen"
CAUSAL = (-1, 0)  # the window: all positions before, none after


@dataclass(frozen=True, slots=True)
class Borders:
    """Begin and end of the n sequences in the flat `[B * S]`, and the length of the longest."""

    starts: Tensor  # [n + 1] int32; the last is B * S
    longest: int


def has_varlen() -> bool:
    """Return whether this torch has it, with the options that are used here: torch 2.11 or later."""
    return "window_size" in _OPTIONS


def register() -> None:
    """Let transformers find it by its name. No mask is built for attentions that it does not know itself."""
    AttentionInterface.register(VARLEN, PackedAttention(VARLEN, borders, _attend_within))


def borders(position_ids: Tensor) -> Borders:
    """A sequence begins wherever positions `[B, S]` begin again at 0; rows follow each other in the flat order."""
    flat = position_ids.flatten()
    starts = torch.nonzero(flat == 0).flatten()
    ends = torch.cat([starts, starts.new_tensor([len(flat)])])
    return Borders(ends.int(), int(ends.diff().max()))


def attend(query: Tensor, key: Tensor, value: Tensor, query_borders: Borders, seen: Borders, scaling: float) -> Tensor:
    """Attend in sequences that follow one another, `[S, heads, D]` each; queries and keys may be of different lengths.

    `query_borders` are of the queries, `seen` of keys and values, of as many sequences. The last query of a sequence
    sees all of its keys, and each before it one less. Returns `[S, heads, D]` of the queries.
    """
    return _kernel(
        query,
        key,
        value,
        query_borders.starts,
        seen.starts,
        query_borders.longest,
        seen.longest,
        scale=scaling,
        window_size=CAUSAL,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _attend_within(query: Tensor, key: Tensor, value: Tensor, both: Borders, scaling: float) -> Tensor:
    return attend(query, key, value, both, both, scaling)


def _kernel(*arguments: Any, **options: Any) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    if "enable_gqa" not in _OPTIONS:  # torch 2.11: fewer heads of keys than of queries need no word
        del options["enable_gqa"]
    return cast("Tensor", varlen_attn(*arguments, **options))  # a tuple only if more is requested


def _options() -> frozenset[str]:
    """Return what this torch's kernel can be given; nothing if it has none."""
    if find_spec("torch.nn.attention.varlen") is None:
        return frozenset()
    from torch.nn.attention.varlen import varlen_attn

    return frozenset(inspect.signature(varlen_attn).parameters)


_OPTIONS = _options()
