"""Shapes of a model's weights, without any weight: it is built on torch's meta device, which has only shapes.

Memory of weights, gradients and optimiser state follows from these shapes, so a plan made from a `config.json` is exact
to the byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from ramet.config.schema import ModelConfig
from ramet.errors import ConfigError
from ramet.models.attention import is_plain
from ramet.policy.models import blocks_of
from ramet.policy.shared_attention import sharing_problems

Shape: TypeAlias = tuple[int, ...]
TRACED = frozenset({"llama", "qwen2", "qwen3"})  # whose passes are traced and compared (test_memory_traced.py)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Letters of the formulas: hidden H, intermediate I, heads * head_dim Q, kv_heads * head_dim K, vocab V."""

    block: tuple[Shape, ...]  # parameters of one block
    outside: tuple[Shape, ...]  # embedding, last norm and output head; a tied one once
    linear: tuple[tuple[int, int], ...]  # (in, out) of the linear layers of one block
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool  # the output head is the embedding
    shares_prefixes: bool  # what its rollouts have in common can be computed once
    plain: bool  # its attention may be `varlen` (models/attention.py)
    architecture: str = ""  # `model_type` of config.json

    @property
    def is_traced(self) -> bool:
        """Whether the formulas of a pass's tensors were compared with a trace of such blocks."""
        return self.architecture in TRACED

    @property
    def parameters(self) -> tuple[Shape, ...]:
        """Shapes of all parameters of the model."""
        return self.block * self.layers + self.outside

    @property
    def n_parameters(self) -> int:
        return count(self.parameters)

    @property
    def norms(self) -> int:
        """Norms of single heads (Qwen3): one for queries, one for keys, or none."""
        return self.block.count((self.head_dim,))

    @property
    def queries(self) -> int:
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        return self.kv_heads * self.head_dim


def count(shapes: Iterable[Shape]) -> int:
    return sum(map(prod, shapes))


def adapters(shape: ModelShape, rank: int) -> tuple[Shape, ...]:
    """LoRA's A `[rank, in]` and B `[out, rank]` on every linear layer but the output head (arXiv 2106.09685)."""
    return tuple(pair for into, out in shape.linear for pair in ((rank, into), (out, rank))) * shape.layers


def read_shape(model: ModelConfig) -> ModelShape:
    """Read the shape of the model in a Hugging Face folder from its `config.json`. Raises `ConfigError`."""
    try:
        config = AutoConfig.from_pretrained(
            model.path, local_files_only=True, trust_remote_code=model.trust_remote_code
        )
        return shape_of(config, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"model.path: no shapes can be made of {model.path}/config.json: {reason}") from error


def shape_of(config: PretrainedConfig, *, trust_remote_code: bool = False) -> ModelShape:
    """Raises `AttributeError` or `ValueError` for a model that is not a stack of blocks. All blocks count as alike."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, trust_remote_code=trust_remote_code
        )
    blocks = blocks_of(model)
    if not blocks:
        raise ValueError(f"{type(model).__name__} does not say which of its modules are blocks")
    inside = {id(parameter) for block in blocks for parameter in block.parameters()}
    outside = [parameter for parameter in model.parameters() if id(parameter) not in inside]
    linear = [module for module in blocks[0].modules() if isinstance(module, nn.Linear)]
    heads: int = config.num_attention_heads
    return ModelShape(
        block=tuple(tuple(parameter.shape) for parameter in blocks[0].parameters()),
        outside=tuple(tuple(parameter.shape) for parameter in outside),
        linear=tuple((module.in_features, module.out_features) for module in linear),
        layers=len(blocks),
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab=config.vocab_size,
        tied=bool(config.tie_word_embeddings),
        shares_prefixes=not sharing_problems(config),
        plain=is_plain(config),
        architecture=config.model_type,
    )
