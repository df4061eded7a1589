"""Common part of attentions over packed rows: the borders of sequences are computed once a forward pass.

Shapes: B rows of S positions; D size of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from ramet.errors import ConfigError

P = TypeVar("P")  # a kernel's description of the packing


class PackedAttention(Generic[P]):
    """transformers' attention interface. Keeps the borders from the positions of the current forward pass: all layers
    are given the same ones, and reading them waits for the device.
    """

    def __init__(
        self, name: str, packing: Callable[[Tensor], P], attend: Callable[[Tensor, Tensor, Tensor, P, float], Tensor]
    ) -> None:
        """`packing` is given positions `[B, S]`; `attend` queries, keys and values `[B * S, heads, D]`, the result of
        `packing`, and the scaling.
        """
        self._name = name
        self._packing = packing
        self._attend = attend
        self._positions: Tensor | None = None
        self._found: P | None = None

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
                f"model.attention: {self._name} computes no sliding windows; allowed for this model: sdpa, eager"
            )
        if position_ids is not self._positions or self._found is None:
            rows = position_ids.expand(query.shape[0], -1)  # without its own, a model counts once for all rows
            self._positions, self._found = position_ids, self._packing(rows)
        # [B * S, heads, D] each; rotary embeddings give float32 under autocast
        queries, keys, values = (x.transpose(1, 2).flatten(0, 1).to(value.dtype) for x in (query, key, value))
        mixed = self._attend(queries, keys, values, self._found, scaling)
        # [B, S, heads, D]
        return mixed.reshape(query.shape[0], query.shape[2], *mixed.shape[1:]), None
