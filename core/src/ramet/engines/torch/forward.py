"""The forward pass over the modules of a Hugging Face model, with Ramet's static cache.

Embeddings, norms, projections and MLPs are the model's own modules; Ramet only connects them. Prefill writes keys and
values and computes no logits; the last token of every prompt goes through the decode step, so there is one place where
logits are made. Both may share a pass, which then reads the weights once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from ramet.engines.torch.cache import KVCache, round_up
from ramet.engines.torch.packed import pack_linears
from ramet.errors import ConfigError

ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # their angles depend only on the position


def check_architecture(model: PreTrainedModel, max_tokens: int) -> None:
    """Raise `ConfigError` for a model that this forward pass would compute wrongly."""
    config = model.config
    if config.model_type not in ARCHITECTURES:
        raise ConfigError(
            f"engine.name: the engine torch does not know the architecture {config.model_type!r}; allowed: "
            f"{', '.join(ARCHITECTURES)} (engine=vllm serves more: docs/supported.md#models)"
        )
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in ROPE_TYPES:
        raise ConfigError(
            f"engine.name: the engine torch does not know rotary embeddings of type {rope!r}; allowed: "
            f"{', '.join(ROPE_TYPES)}"
        )
    layers = getattr(config, "layer_types", None) or ()
    window = getattr(config, "sliding_window", None)
    if "sliding_attention" in layers and (window is None or window < max_tokens):
        raise ConfigError(
            f"engine.params.max_tokens: {max_tokens} tokens exceed the model's sliding window of {window}, which the "
            "engine torch does not compute"
        )


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """R rows of T tokens that look at L cached positions."""

    tokens: Tensor  # [R, T]
    positions: Tensor  # [R, T]
    slots: Tensor  # [R]
    read: slice | Tensor  # the same slots, as a slice where it can be
    mask: Tensor  # [R, 1, T, L], bool; of a decode step additive in float32, T = 1


class Forward:
    """One model with its cache. Letters: R rows, T tokens a row, L cached positions that are looked at, N tokens of a
    pass.
    """

    def __init__(self, model: PreTrainedModel, *, slots: int, max_tokens: int, pack: bool = False) -> None:
        """`pack`: compute with packed weights where that is faster; bits then depend on the number of rows."""
        check_architecture(model, max_tokens)
        self.model = model
        self.body: Any = model.model  # attributes of Hugging Face modules have no types
        self.head: Any = model.lm_head
        first = self.body.layers[0].self_attn
        weight = self.body.embed_tokens.weight
        self.device, self.dtype = weight.device, weight.dtype
        self.head_dim: int = first.head_dim
        self.kv_heads: int = first.k_proj.out_features // self.head_dim
        self.vocab_size: int = self.head.out_features
        self.max_tokens = max_tokens
        self.slots = slots
        self.cache = KVCache(
            layers=len(self.body.layers),
            slots=slots,
            kv_heads=self.kv_heads,
            max_tokens=max_tokens,
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=self.device,
        )
        self._positions = torch.arange(self.cache.length, device=self.device)
        self._cos, self._sin = self._rotary_tables(weight)
        self._packed = pack_linears(model) if pack else {}

    def decode(
        self,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        read: slice | Tensor,
        length: int,
        beside: Sequence[TokenBlock] = (),
    ) -> Tensor:
        """Logits `[R, V]` in float32 after one token a row. `read` selects the same slots, as a slice if it can.

        `beside`: parts of prompts that are computed in the same pass, in other slots.
        """
        mask = torch.zeros((len(tokens), length), dtype=torch.float32, device=self.device)
        mask.masked_fill_(self._positions[:length] > positions[:, None], float("-inf"))
        block = TokenBlock(tokens[:, None], positions[:, None], slots, read, mask[:, None, None, :])
        hidden = self._run([block, *beside])
        logits: Tensor = self.head(hidden[: len(tokens)])
        return logits.float()

    def prefill(self, prompts: TokenBlock) -> None:
        """Compute and store keys and values."""
        self._run([prompts])

    def prompts(self, tokens: Tensor, starts: Tensor, counts: Tensor, slots: Tensor, length: int) -> TokenBlock:
        """`[R, T]` tokens from the positions `starts` on, of which the first `counts` of each row are real."""
        steps = self._positions[: tokens.shape[1]]
        positions = torch.where(steps < counts[:, None], starts[:, None] + steps, self.cache.scratch)
        seen = self._positions[:length] <= positions[:, :, None]
        return TokenBlock(tokens, positions, slots, slots, seen[:, None])

    def load(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        """Take new weights that fit the model."""
        parameters, given = self.model.state_dict(keep_vars=True), dict(weights)
        for name, new in weights:
            parameters[name].copy_(new)  # no numbers where only the packed copy has some
        for name, layer in self._packed.items():
            layer.pack(given.get(name, layer.layer.weight))  # a tied output head may be given as the embedding

    def length(self, tokens: int) -> int:
        """How many cached positions to look at for sequences of so many tokens."""
        return min(round_up(tokens), self.cache.length)

    def _run(self, blocks: Sequence[TokenBlock]) -> Tensor:
        """The last hidden states `[N, H]`. Blocks differ only in what they attend to."""
        positions = _joined([block.positions.flatten() for block in blocks])
        hidden: Tensor = self.body.embed_tokens(_joined([block.tokens.flatten() for block in blocks]))
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]  # [N, 1, head_dim]
        addresses = _joined([self.cache.addresses(block.slots, block.positions) for block in blocks])
        for index, layer in enumerate(self.body.layers):
            queries = self._attend_to(layer, index, layer.input_layernorm(hidden), cos, sin, addresses)
            mixed, start = [], 0
            for block in blocks:
                keys, values = self.cache.read(index, block.read, block.mask.shape[-1])
                own = queries[start : start + block.tokens.numel()].view(*block.tokens.shape, *queries.shape[1:])
                mixed.append(_attention(own, keys, values, block.mask, layer.self_attn.scaling).flatten(0, 1))
                start += block.tokens.numel()
            hidden = hidden + layer.self_attn.o_proj(_joined(mixed))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        normed: Tensor = self.body.norm(hidden)
        return normed

    def _attend_to(self, layer: Any, index: int, hidden: Tensor, cos: Tensor, sin: Tensor, addresses: Tensor) -> Tensor:
        """Write this pass's keys and values; the queries `[N, heads, head_dim]`."""
        attention = layer.self_attn
        shape = (len(hidden), -1, self.head_dim)
        queries, keys = attention.q_proj(hidden).view(shape), attention.k_proj(hidden).view(shape)
        if hasattr(attention, "q_norm"):  # Qwen3 normalises each head
            queries, keys = attention.q_norm(queries), attention.k_norm(keys)
        self.cache.write(index, addresses, _rotate(keys, cos, sin), attention.v_proj(hidden).view(shape))
        return _rotate(queries, cos, sin)

    def _rotary_tables(self, like: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.body.rotary_emb(like, self._positions[None])
        half = sin.shape[-1] // 2  # the sign of the rotation's first half goes into the table
        return cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    return x * cos + torch.roll(x, x.shape[-1] // 2, dims=-1) * signed_sin


def _attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Queries `[R, T, heads, head_dim]` to `[R, T, heads * head_dim]`.

    A decode step (additive mask, T = 1) is a pair of small matrix products, which beats the fused kernels on CPUs and
    needs no repeated heads; prefill (boolean mask) uses the fused kernel, which never has all scores in memory.
    """
    rows, tokens, heads, head_dim = queries.shape
    if mask.dtype is torch.bool:
        mixed = F.scaled_dot_product_attention(
            queries.transpose(1, 2), keys, values, attn_mask=mask, scale=scale, enable_gqa=heads != keys.shape[1]
        )
        return mixed.transpose(1, 2).reshape(rows, tokens, -1)
    grouped = queries.view(rows, keys.shape[1], -1, head_dim)
    scores = torch.matmul(grouped * scale, keys.transpose(-1, -2)) + mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
    return torch.matmul(weights, values).view(rows, 1, -1)
