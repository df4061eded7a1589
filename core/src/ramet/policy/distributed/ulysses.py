"""Ulysses sequence parallelism (DeepSpeed-Ulysses, arXiv 2309.14509): U ranks of a group share every sequence.

Each rank holds 1/U of the positions. Around the attention an all-to-all trades positions for heads, so that there a
rank sees the whole sequence with 1/U of the heads. Positions, masks and packing borders are therefore those of the
*whole* sequence. transformers would build a mask from a rank's own positions, so its mask functions are called here on
all of them, and the result reaches the attention beside the model's own (absent) mask.

The output head, which is wide, runs on a rank's own positions only (`ulysses_states`); the scalars that come out of it
are then put together (`join`), so that the loss stands on whole sequences.

**Gradients.** Every rank of a group computes the same loss L of its micro-batch. After `join` the *sum* of the ranks'
gradients is the gradient of L, for the body and for the head: nothing needs scaling beyond what data parallelism needs
anyway.
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

PREFIX = "ulysses_"  # of the name under which transformers finds the wrapped attention
MODELS = ("llama", "qwen2", "qwen3")  # their attention was compared with one rank's; others may give it more per head
LENGTH_DEPENDENT = ("dynamic", "longrope")  # rotary embeddings by the longest position, on which ranks would disagree


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What the attention of one rank must know of the whole sequences."""

    group: ProcessGroup
    position_ids: Tensor  # [B, S]
    masks: Mapping[str, Tensor | None]  # by type of layer; None: plain causal, or the kernel reads the positions


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


def install(model: PreTrainedModel, group: ProcessGroup) -> None:
    """Let the model's attention work over `group`; from now on it is run by `ulysses_states` only.

    Raises `ConfigErrors` for a model that cannot be shared.
    """
    raise_all(check_ulysses(model.config, dist.get_world_size(group)))
    own = own_attention(model.config)
    # Collectives inside a compiled block would be traced; a break in the graph keeps them as they are.
    AttentionInterface.register(PREFIX + own, torch.compiler.disable(_attention))  # type: ignore[no-untyped-call]
    model.config._attn_implementation = PREFIX + own


def own_attention(config: PretrainedConfig) -> str:
    """The name of the attention that computes: `sdpa`, `eager` or `flash_attention_2`."""
    return str(config._attn_implementation).removeprefix(PREFIX)


def ulysses_states(
    model: PreTrainedModel, input_ids: Tensor, position_ids: Tensor, predict: Tensor, group: ProcessGroup
) -> tuple[Tensor, Tensor]:
    """Hidden states `[m, H]` behind the last norm of this rank's part of `predict`, and which `[m]` of them these are.

    All ranks of the group give the same `[B, S]` ids and positions and the same `[n]` places in the flat `[B * S]`.
    What is computed of the states goes through `join`.
    """
    hidden = _local_hidden(model, input_ids, position_ids, group)
    width = hidden.shape[1]
    row, column = predict // input_ids.shape[1], predict % input_ids.shape[1]
    own = (column // width == dist.get_rank(group)).nonzero().squeeze(1)
    return hidden[row[own], column[own] % width], own


def join(values: Tensor, own: Tensor, length: int, group: ProcessGroup) -> Tensor:
    """`[length]`: the ranks' values at their places `own`, the same on every rank, with gradient; 0 elsewhere."""
    placed = values.new_zeros(length).index_put((own,), values)
    joined: Tensor = _Join.apply(placed, group)  # type: ignore[no-untyped-call]
    return joined


def _local_hidden(model: PreTrainedModel, input_ids: Tensor, position_ids: Tensor, group: ProcessGroup) -> Tensor:
    """Of this rank's positions, filling included."""
    ids, positions, whole = _shard(model, input_ids, position_ids, group)
    body: Any = model.base_model
    hidden: Tensor = body(input_ids=ids, position_ids=positions, use_cache=False, ulysses=whole).last_hidden_state
    return hidden


def _shard(
    model: PreTrainedModel, input_ids: Tensor, position_ids: Tensor, group: ProcessGroup
) -> tuple[Tensor, Tensor, Whole]:
    """This rank's ids and positions `[B, ceil(S / U)]`, and what its attention must know of all.

    Filled positions go on counting, so that they belong to the end of a row's last sequence: nothing looks at them.
    """
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    missing = -input_ids.shape[1] % size
    ids = pad(input_ids, (0, missing))
    behind = torch.arange(1, missing + 1, device=position_ids.device)
    positions = torch.cat([position_ids, position_ids[:, -1:] + behind], dim=1)
    whole = Whole(group=group, position_ids=positions, masks=_masks(model, positions))
    return ids.chunk(size, dim=1)[rank], positions.chunk(size, dim=1)[rank], whole


def _masks(model: PreTrainedModel, position_ids: Tensor) -> dict[str, Tensor | None]:
    """What the model would build from all positions with its own attention."""
    config = copy.copy(model.config)
    config._attn_implementation = own_attention(config)
    shaped = torch.empty(*position_ids.shape, 0, dtype=model.dtype, device=position_ids.device)
    found = create_masks_for_generate(config, shaped, None, None, position_ids=position_ids)
    return found if isinstance(found, dict) else {"full_attention": found}


def _attention(
    module: nn.Module,
    query: Tensor,  # [B, heads, S / U, D]
    key: Tensor,  # [B, key heads, S / U, D]
    value: Tensor,
    attention_mask: Tensor | None,
    ulysses: Whole | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface. Returns `[B, S / U, heads, D]`."""
    if ulysses is None:
        raise RuntimeError("a model under sequence parallelism is run by ulysses_states")
    group = ulysses.group
    size = dist.get_world_size(group)
    repeats = size // gcd(key.shape[1], size)  # key heads are shared out whole, so there must be a multiple of U
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    query, key, value = (_swap(states, group, give=1, take=2) for states in (query, key, value))
    kwargs["position_ids"] = ulysses.position_ids
    mask = ulysses.masks[getattr(module, "layer_type", None) or "full_attention"]
    local: Any = _Part(module, query.shape[1] // key.shape[1])
    output, _ = _implementation(module)(local, query, key, value, mask, **kwargs)
    return _swap(output, group, give=1, take=2), None


def _implementation(module: Any) -> Callable[..., tuple[Tensor, Any]]:
    """The eager attention is a function beside the model's class, the others are registered."""
    eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    found: Callable[..., tuple[Tensor, Any]]
    found = ALL_ATTENTION_FUNCTIONS.get_interface(own_attention(module.config), eager)
    return found


class _Part:
    """An attention module as its implementation shall see it: with one rank's heads, and under its own name."""

    def __init__(self, module: Any, groups: int) -> None:
        self.module = module
        self.num_key_value_groups = groups
        self.config: Any = copy.copy(module.config)
        self.config._attn_implementation = own_attention(self.config)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def _swap(states: Tensor, group: ProcessGroup, *, give: int, take: int) -> Tensor:
    """Give away parts of one dimension and take the other whole."""
    swapped: Tensor = _AllToAll.apply(states, group, give, take)  # type: ignore[no-untyped-call]
    return swapped


class _AllToAll(torch.autograd.Function):
    """Part r of dimension `give` goes to rank r; what arrives is joined along `take` in the order of ranks."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, group: ProcessGroup, give: int, take: int) -> Tensor:
        ctx.group, ctx.give, ctx.take = group, give, take
        return _exchange(states, group, give, take)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(gradient, ctx.group, ctx.take, ctx.give), None, None, None


def _exchange(states: Tensor, group: ProcessGroup, give: int, take: int) -> Tensor:
    parts = torch.stack(states.chunk(dist.get_world_size(group), dim=give))
    arrived = torch.empty_like(parts)
    dist.all_to_all_single(arrived, parts, group=group)
    return torch.cat(arrived.unbind(), dim=take)


class _Join(torch.autograd.Function):
    """Adds up over the group. The ranks compute the same loss of the sum, so each has its part's whole gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: ProcessGroup) -> Tensor:
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
