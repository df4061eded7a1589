"""Ulysses sequence parallelism (DeepSpeed-Ulysses, arXiv 2309.14509): U ranks of a group share every sequence.

Each rank has 1/U of the positions. Around the attention an all-to-all exchanges positions for heads, so that each rank
sees the complete sequence there, with 1/U of the heads. Positions, masks and sequence borders therefore belong to the
*complete* sequence. transformers would build a mask from a rank's own positions. So its mask functions are called here
on all positions, and the attention gets the result in place of the model's own (absent) mask.

The output head, which is wide, runs on a rank's own positions only (`ulysses_states`); its results, one number per
token, are then gathered (`join_values`), so that the loss gets complete sequences.

**Gradients.** All ranks of a group compute the same loss L of their micro-batch. After `join_values` the *sum* of the
ranks' gradients is the gradient of L, for the body and for the head: nothing needs scaling beyond what data parallelism
needs anyway.

Shapes: B rows of S positions in a micro-batch, U ranks in the group, H hidden size, D size of a head; n trained tokens,
of which m are predicted at this rank's positions.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.functional import pad
from transformers import PretrainedConfig, PreTrainedModel
from transformers.masking_utils import create_masks_for_generate
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from ramet.errors import raise_all
from ramet.policy.batching.attention_plan import AttentionPlan
from ramet.policy.batching.gather import gathered
from ramet.policy.shared_attention import SharedPass

PREFIX = "ulysses_"  # of the name under which transformers finds the wrapped attention
MODELS = ("llama", "qwen2", "qwen3")  # compared with one rank; other attentions may have more inputs per head
LENGTH_DEPENDENT = ("dynamic", "longrope")  # rotary embeddings by the longest position, which differs from rank to rank


@dataclass(frozen=True, slots=True, kw_only=True)
class FullSequence:
    """Positions and borders of the complete sequences for one rank's attention, padded to a multiple of U."""

    group: ProcessGroup
    position_ids: Tensor  # [B, S]
    masks: Mapping[str, Tensor | None]  # [B, 1, S, S] by type of layer; None: causal, or the kernel reads positions


def check_ulysses(config: PretrainedConfig, size: int) -> list[str]:
    """Why a model of this configuration cannot be shared by `size` ranks."""
    if size == 1:
        return []
    problems = []
    if config.model_type not in MODELS:
        problems.append(
            f"policy.sequence_parallel={size}: not known to be right for models of the type {config.model_type!r}; "
            f"allowed: {', '.join(MODELS)}"
        )
    heads = int(getattr(config, "num_attention_heads", 0))
    if heads % size:
        problems.append(
            f"policy.sequence_parallel={size} does not divide the model's {heads} attention heads; allowed: "
            f"{', '.join(str(n) for n in range(1, heads + 1) if heads % n == 0)}"
        )
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in LENGTH_DEPENDENT:
        problems.append(f"policy.sequence_parallel={size}: rotary embeddings of the type {rope!r} are not supported")
    return problems


def install_ulysses(model: PreTrainedModel, group: ProcessGroup) -> None:
    """Replace the model's attention by one over `group`; from then on only `ulysses_states` can run the model.

    Raises `ConfigErrors` for a model that cannot be shared.
    """
    raise_all(check_ulysses(model.config, dist.get_world_size(group)))
    name = attention_name(model.config)
    # Collectives inside a compiled block would be traced; a break in the graph keeps them as they are.
    AttentionInterface.register(PREFIX + name, torch.compiler.disable(_attention))  # type: ignore[no-untyped-call]
    model.config._attn_implementation = PREFIX + name


def attention_name(config: PretrainedConfig) -> str:
    """The name of the attention inside: `sdpa`, `eager`, `flash_attention_2`, `varlen` or `flex`, or one of these
    wrapped so that prefixes are computed once (`shared_attention.py`).
    """
    return str(config._attn_implementation).removeprefix(PREFIX)


def ulysses_states(
    model: PreTrainedModel,
    input_ids: Tensor,
    position_ids: Tensor,
    predict: Tensor,
    group: ProcessGroup,
    attention: AttentionPlan | None = None,
) -> tuple[Tensor, Tensor]:
    """Hidden states `[m, H]` after the last norm of this rank's part of `predict`, and their indices `[m]` in it.

    All ranks of the group give the same `[B, S]` ids and positions, and the same `predict` `[n]`, positions in the flat
    `[B * S]`. If prefixes are computed once, they give the same plan. Results from the states go through `join_values`.
    """
    hidden = _local_hidden(model, input_ids, position_ids, group, attention)  # [B, ceil(S / U), H]
    width = hidden.shape[1]
    # Rank r has columns r * width to (r + 1) * width of every row.
    row, column = predict // input_ids.shape[1], predict % input_ids.shape[1]
    own_indices = (column // width == dist.get_rank(group)).nonzero().squeeze(1)
    return gathered(hidden.flatten(0, 1), row[own_indices] * width + column[own_indices] % width), own_indices


def join_values(values: Tensor, own_indices: Tensor, length: int, group: ProcessGroup) -> Tensor:
    """`[length]`: each rank's `values` `[m]` at its indices `own_indices` `[m]`, the same on every rank, with gradient.

    The indices of the ranks do not overlap; what no rank has is 0.
    """
    scattered = values.new_zeros(length).index_put((own_indices,), values)
    joined: Tensor = _JoinValues.apply(scattered, group)  # type: ignore[no-untyped-call]
    return joined


def _local_hidden(
    model: PreTrainedModel,
    input_ids: Tensor,
    position_ids: Tensor,
    group: ProcessGroup,
    attention: AttentionPlan | None,
) -> Tensor:
    """`[B, ceil(S / U), H]`: of this rank's positions, padding included."""
    ids, positions, full = _shard(model, input_ids, position_ids, group, attention)
    shared = {} if attention is None else {"shared": SharedPass(attention)}
    body: Any = model.base_model
    output = body(input_ids=ids, position_ids=positions, use_cache=False, ulysses=full, **shared)
    hidden: Tensor = output.last_hidden_state
    return hidden


def _shard(
    model: PreTrainedModel,
    input_ids: Tensor,
    position_ids: Tensor,
    group: ProcessGroup,
    attention: AttentionPlan | None,
) -> tuple[Tensor, Tensor, FullSequence]:
    """This rank's ids and positions `[B, ceil(S / U)]`, and what its attention must know of all of them.

    Positions of the padding continue the count, so that it belongs to the end of a row's last sequence, where no token
    of a sequence attends to it.
    """
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    # Pad S to a multiple of U.
    n_padding = -input_ids.shape[1] % size
    ids = pad(input_ids, (0, n_padding))
    counts = torch.arange(1, n_padding + 1, device=position_ids.device)
    positions = torch.cat([position_ids, position_ids[:, -1:] + counts], dim=1)
    # Masks and borders are of complete rows; ids and positions are cut.
    masks = _masks(model, positions) if attention is None else {"full_attention": None}
    full = FullSequence(group=group, position_ids=positions, masks=masks)
    return ids.chunk(size, dim=1)[rank], positions.chunk(size, dim=1)[rank], full


def _masks(model: PreTrainedModel, position_ids: Tensor) -> dict[str, Tensor | None]:
    """The masks that the model would build from all positions `[B, S]` with its own attention, by type of layer."""
    config = copy.copy(model.config)
    config._attn_implementation = attention_name(config)
    # Only shape, type and device of the embeddings are read.
    shaped = torch.empty(*position_ids.shape, 0, dtype=model.dtype, device=position_ids.device)
    masks = create_masks_for_generate(config, shaped, None, None, position_ids=position_ids)
    return masks if isinstance(masks, dict) else {"full_attention": masks}


def _attention(
    module: nn.Module,
    query: Tensor,  # [B, heads, S / U, D]
    key: Tensor,  # [B, key heads, S / U, D]
    value: Tensor,  # [B, key heads, S / U, D]
    attention_mask: Tensor | None,
    ulysses: FullSequence | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface. Returns `[B, S / U, heads, D]`."""
    if ulysses is None:
        raise RuntimeError("a model under sequence parallelism is run by ulysses_states")
    group = ulysses.group
    size = dist.get_world_size(group)
    # Each rank gets complete key heads, so their number must be a multiple of U: grouped-query models repeat some.
    repeats = size // gcd(key.shape[1], size)
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    # [B, heads, S / U, D] -> [B, heads / U, S, D]: heads are split over the ranks, positions gathered.
    query, key, value = (_all_to_all(states, group, split=1, gather=2) for states in (query, key, value))
    kwargs["position_ids"] = ulysses.position_ids
    mask = ulysses.masks[getattr(module, "layer_type", None) or "full_attention"]
    local: Any = _LocalHeads(module, query.shape[1] // key.shape[1])
    output, _ = _implementation(module)(local, query, key, value, mask, **kwargs)
    # [B, S, heads / U, D] -> [B, S / U, heads, D]: the way back.
    return _all_to_all(output, group, split=1, gather=2), None


def _implementation(module: Any) -> Callable[..., tuple[Tensor, Any]]:
    """The attention function: eager is one of the module that defines the model's class, the others are registered."""
    eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    function: Callable[..., tuple[Tensor, Any]]
    function = ALL_ATTENTION_FUNCTIONS.get_interface(attention_name(module.config), eager)
    return function


class _LocalHeads:
    """An attention module as its implementation must see it: with one rank's heads and its own attention's name."""

    def __init__(self, module: Any, groups: int) -> None:
        self.module = module
        self.num_key_value_groups = groups
        self.config: Any = copy.copy(module.config)
        self.config._attn_implementation = attention_name(self.config)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def _all_to_all(states: Tensor, group: ProcessGroup, *, split: int, gather: int) -> Tensor:
    """Split dimension `split` over the ranks and gather dimension `gather` from them."""
    exchanged: Tensor = _AllToAll.apply(states, group, split, gather)  # type: ignore[no-untyped-call]
    return exchanged


class _AllToAll(torch.autograd.Function):
    """Part r of dimension `split` goes to rank r; received parts are joined along `gather` in the order of ranks.

    The gradient goes the opposite way: its parts of `gather` return to the ranks that they came from.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, group: ProcessGroup, split: int, gather: int) -> Tensor:
        ctx.group, ctx.split, ctx.gather = group, split, gather
        return _exchange(states, group, split, gather)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(gradient, ctx.group, ctx.gather, ctx.split), None, None, None


def _exchange(states: Tensor, group: ProcessGroup, split: int, gather: int) -> Tensor:
    sent = torch.stack(states.chunk(dist.get_world_size(group), dim=split))  # [U, ...], part r for rank r
    received = torch.empty_like(sent)  # [U, ...], part r from rank r
    dist.all_to_all_single(received, sent, group=group)
    return torch.cat(received.unbind(), dim=gather)


class _JoinValues(torch.autograd.Function):
    """The sum over the group. All ranks compute the same loss from it, so each has its own part's full gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: ProcessGroup) -> Tensor:
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
