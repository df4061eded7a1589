"""The attention of micro-batches in which every prefix is computed once (`batching/shared.py`).

It is registered with transformers as one more attention, which wraps the model's own. A forward pass with a plan
computes by the plan, with SDPA or, if that is the model's attention, torch's `varlen` or FlexAttention. Any other pass
is unchanged. The plan goes through the model's forward pass as a keyword, and so reaches every layer, also where
activation checkpointing computes a layer again.

Keys and values of a path are gathered for each run that needs them, but for FlexAttention, which is given the row as it
is. The gradient of one that many runs read is the sum over all of them, and is added up in float32: in bfloat16 the
root of 256 leaves was wrong by 1.9 %.

Shapes: S positions in the packed row, D the size of a head; a call has n runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import PretrainedConfig, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from ramet.config.schema import Attention, SharePrefixes
from ramet.errors import raise_all
from ramet.models.attention import MODELS
from ramet.models.flex import FLEX, block_mask
from ramet.models.flex import attend as flex_attention
from ramet.models.varlen import VARLEN, Borders
from ramet.models.varlen import attend as varlen_attention
from ramet.policy.batching.attention_plan import AttentionCall, AttentionPlan
from ramet.policy.batching.gather import gathered

SHARED = "shared_"  # of the name under which transformers finds the wrapped attention
LENGTH_DEPENDENT = ("dynamic", "longrope")  # rotary embeddings by the longest position of a pass


def sharing_problems(config: PretrainedConfig) -> list[str]:
    """Why prefixes of a model of this configuration cannot be computed once, each as the end of a sentence."""
    problems = []
    if config.model_type not in MODELS:
        problems.append(
            f"not known to be right for models of the type {config.model_type!r}; allowed: {', '.join(MODELS)}"
        )
    if "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
        # Code that does not pass keywords to the attention would get other numbers, without an error.
        problems.append(
            "not known to be right for models with custom code (auto_map in config.json); allowed: models of "
            "transformers"
        )
    layers = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if layers:
        problems.append(f"the model has layers of the type {', '.join(sorted(layers))}; allowed: full_attention")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in LENGTH_DEPENDENT:
        problems.append(
            f"rotary embeddings of the type {rope!r} are not supported; allowed: those that do not depend on lengths"
        )
    return problems


def check_sharing(config: PretrainedConfig, attention: str) -> list[str]:
    """Problems of `policy.share_prefixes=always` with a model and its attention, by the name that transformers has."""
    problems = sharing_problems(config)
    if attention == Attention.EAGER:
        problems.append("not with model.attention=eager; allowed: auto, sdpa, flash_attention_2, varlen, flex")
    return [f"policy.share_prefixes=always: {problem}" for problem in problems]


def shares_prefixes(wanted: SharePrefixes, config: PretrainedConfig, device: torch.device) -> bool:
    """Whether a model's passes may be given a plan. `auto` asks for a measured case: `shared_by_auto`.

    Raises `ConfigErrors` for a model that is to share and cannot.
    """
    kernel = str(config._attn_implementation)
    if wanted is SharePrefixes.AUTO:
        return shared_by_auto(device.type, kernel) and not sharing_problems(config)
    if wanted is SharePrefixes.ALWAYS:
        raise_all(check_sharing(config, kernel))
    return wanted is SharePrefixes.ALWAYS


def shared_by_auto(device: str, attention: str) -> bool:
    """Whether `policy.share_prefixes=auto` takes this attention there: SDPA on a CPU, `varlen` on CUDA."""
    return attention == {"cpu": Attention.SDPA, "cuda": Attention.VARLEN}.get(device)


def install_shared_attention(model: PreTrainedModel) -> None:
    """Let the model's forward passes be given a plan (`shared_attention`); those without one stay as they are."""
    name = str(model.config._attn_implementation)
    attend = {VARLEN: _attend_varlen, FLEX: _attend_flex}.get(name, _attend)
    original = ALL_ATTENTION_FUNCTIONS[name]
    if "flash" in name:
        original = _under_its_name(original, name)
    AttentionInterface.register(SHARED + name, _SharedAttention(original, attend))
    if name in ALL_MASK_ATTENTION_FUNCTIONS.valid_keys():
        AttentionMaskInterface.register(SHARED + name, ALL_MASK_ATTENTION_FUNCTIONS[name])
    model.config._attn_implementation = SHARED + name


def has_shared_attention(config: PretrainedConfig) -> bool:
    return SHARED in str(config._attn_implementation)


class SharedPass:
    """A plan during one forward pass and its backward pass. Masks are the same in all layers: the first makes them."""

    def __init__(self, plan: AttentionPlan) -> None:
        self.plan = plan
        self._masks: list[Tensor | None] | None = None
        self._blocks: BlockMask | None = None

    def masks(self, dtype: torch.dtype) -> list[Tensor | None]:
        """Return what each call adds to the scores, `[n or 1, 1, Q, K]` of the queries' type; None: causal.

        SDPA would make such numbers from a mask of truth values in every layer, and keep each for the backward pass.
        """
        if self._masks is None:
            seen = [call.seen(self.plan.queries.device) for call in self.plan.calls]
            self._masks = [None if mask is None else _added(mask, dtype) for mask in seen]
        return self._masks

    def blocks(self) -> BlockMask:
        """The same for FlexAttention."""
        if self._blocks is None:
            self._blocks = block_mask(self.plan.ends)
        return self._blocks


def _added(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def shared_attention(plan: AttentionPlan, device: torch.device) -> dict[str, Any]:
    """Keywords for a forward pass of a model with `install_shared_attention`.

    Where a mask of four dimensions is given, transformers builds none; its content is not read.
    """
    return {"shared": SharedPass(plan), "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)}


def _under_its_name(original: Callable[..., tuple[Tensor, Any]], name: str) -> Callable[..., tuple[Tensor, Any]]:
    """Wrap flash-attention, which is loaded by the name that the module's configuration has when it is called."""

    def attend(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        return original(_Named(module, name), *args, **kwargs)

    disabled: Callable[..., tuple[Tensor, Any]] = torch.compiler.disable(attend)  # type: ignore[no-untyped-call]
    return disabled


class _Named:
    """An attention module whose configuration has another attention's name."""

    def __init__(self, module: Any, name: str) -> None:
        self._module = module
        self.config: Any = copy.copy(module.config)
        self.config._attn_implementation = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _SharedAttention:
    """transformers' attention interface."""

    def __init__(self, original: Callable[..., tuple[Tensor, Any]], attend: Callable[..., Tensor]) -> None:
        self._own = original
        self._attend = attend

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,  # [1, heads, S, D]; [B, heads, S, D] without a plan
        key: Tensor,  # [1, key heads, S, D]
        value: Tensor,  # [1, key heads, S, D]
        attention_mask: Tensor | None,
        shared: SharedPass | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Any]:
        """Returns `[1, S, heads, D]`."""
        if shared is None:
            return self._own(module, query, key, value, attention_mask, **kwargs)
        # [S, heads, D] each; rotary embeddings give float32 under autocast
        rows = [x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value)]
        mixed = self._attend(rows, shared, kwargs["scaling"])
        # 0 at positions after the plan's: the padding of Ulysses
        return pad(mixed, (0, 0, 0, 0, 0, query.shape[2] - len(mixed)))[None], None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend(rows: Sequence[Tensor], shared: SharedPass, scaling: float) -> Tensor:
    """`[S, heads, D]` of queries, keys and values, a few calls with masks."""
    plan = shared.plan
    queries = torch.split(gathered(rows[0], plan.queries), [call.n_runs * call.n_queries for call in plan.calls])
    sizes = [call.n_runs * call.n_keys for call in plan.calls]
    keys, values = (torch.split(gathered(x, plan.keys), sizes) for x in rows[1:])
    masks = shared.masks(rows[0].dtype)
    mixed = [_call(*operands, scaling) for operands in zip(plan.calls, queries, keys, values, masks, strict=True)]
    return gathered(torch.cat(mixed), plan.results)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend_varlen(rows: Sequence[Tensor], shared: SharedPass, scaling: float) -> Tensor:
    """Compute `_attend` in one call without masks and padding."""
    plan = shared.plan
    query = rows[0][: len(plan.results)]
    key, value = (gathered(x, plan.paths) for x in rows[1:])
    runs, paths = Borders(plan.starts, plan.longest), Borders(plan.path_starts, plan.longest_path)
    return varlen_attention(query, key, value, runs, paths, scaling)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend_flex(rows: Sequence[Tensor], shared: SharedPass, scaling: float) -> Tensor:
    """Compute `_attend` in one call of the row as it is."""
    query, key, value = (x[: len(shared.plan.ends)] for x in rows)
    return flex_attention(query, key, value, shared.blocks(), scaling)


def _call(
    call: AttentionCall, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
) -> Tensor:
    """All `[n * X, heads, D]`; of the queries."""
    query, key, value = (x.view(call.n_runs, -1, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))
    groups = query.shape[1] // key.shape[1]
    in_kernel = groups > 1 and (mask is None or query.device.type == "cpu")  # on CUDA not with a mask
    if groups > 1 and not in_kernel:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    mixed = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=in_kernel,
    )
    return mixed.transpose(1, 2).flatten(0, 1)
