"""`model.attention=flex`: torch's FlexAttention (arXiv 2412.05496) over packed rows, prefixes computed once or not.

The kernel is given a packed row as it is, and a rule of which key a query sees. Tokens are laid out as a trie in the
order of a depth-first walk: the descendants of a token, in its own sequence or in forks of it, directly follow it. So
one number for each token is enough: a query sees the keys before it whose descendants end after it. Without forks a
token's descendants end where its sequence does. Nothing is gathered, and blocks of keys that no query of a block sees
are skipped.

Compiled by torch it is one kernel in each direction, which adds up gradients in float32; on a CPU torch has only the
forward pass, and another that keeps all scores. `bench/gpu` runs the kernel; tests run torch's own reference.

Shapes: B rows of S positions; D size of a head; blocks of `BLOCK` positions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad
from transformers.modeling_utils import AttentionInterface

from ramet.models.packed_attention import PackedAttention

FLEX = "flex"
BLOCK = 128  # positions; the kernels' own size
SMALLEST_HEAD = 16  # of the kernels on CUDA


def register() -> None:
    """Let transformers find it by its name. No mask is built for attentions that it does not know itself."""
    AttentionInterface.register(FLEX, _FlexAttention())


def ends_of_sequences(position_ids: Tensor) -> Tensor:
    """`[B * S]` int32: of each position of `[B, S]`, where its sequence ends on the flat row.

    A sequence begins wherever positions begin again at 0; rows follow each other.
    """
    flat = position_ids.flatten()
    starts = flat == 0
    borders = torch.cat([torch.nonzero(starts).flatten(), starts.new_tensor([len(flat)], dtype=torch.int64)])
    return borders[starts.cumsum(0)].int()


def block_mask(ends: Tensor) -> BlockMask:
    """Query i sees key j where j <= i < `ends[j]`; `[S]` int32.

    The descendants of a token follow it without a gap, so blocks of keys and queries are compared only by their first
    and last positions: nothing of the size S x S is made.
    """
    n_blocks = -(-len(ends) // BLOCK)
    by_block = pad(ends, (0, n_blocks * BLOCK - len(ends))).view(n_blocks, BLOCK)
    number = torch.arange(n_blocks, device=ends.device)
    earlier = number[None] < number[:, None]  # [query blocks, key blocks]
    first, after = number[:, None] * BLOCK, (number[:, None] + 1) * BLOCK  # positions of a block of queries
    any_seen = earlier & (by_block.amax(1)[None] > first)
    all_seen = earlier & (by_block.amin(1)[None] >= after)
    partly = (any_seen & ~all_seen) | (number[None] == number[:, None])

    def sees(_row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    return BlockMask.from_kv_blocks(
        *_listed(partly),
        *_listed(all_seen),
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(len(ends), len(ends)),
    )


def attend(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scaling: float) -> Tensor:
    """`[S, heads, D]` each, of one row; returns the queries' shape."""
    query, key, value = (x.transpose(0, 1)[None] for x in (query, key, value))
    kernel = _compiled() if query.is_cuda else _reference
    mixed = kernel(query, key, value, block_mask=mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1])
    return mixed[0].transpose(0, 1)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    """Compile once for all lengths: a kernel for each would be compiled at nearly every pass."""
    return torch.compile(flex_attention, dynamic=True)


def _reference(*arguments: Any, **options: Any) -> Tensor:
    return cast("Tensor", flex_attention(*arguments, **options))  # a tuple only if more is requested


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys there are for each block of queries, and their numbers, first; both int32."""
    order = blocks.int().argsort(dim=1, descending=True, stable=True)
    return blocks.sum(1).int()[None, None], order.int()[None, None]


class _FlexAttention(PackedAttention[BlockMask]):
    """Skipped by `policy.compile`: its kernel is compiled separately."""

    def __init__(self) -> None:
        super().__init__(FLEX, lambda positions: block_mask(ends_of_sequences(positions)), attend)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *arguments: Any, **options: Any) -> tuple[Tensor, None]:
        return super().__call__(*arguments, **options)
