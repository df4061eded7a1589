"""Is a packed micro-batch exact on this device? Each attention that runs here, packed against one row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

import torch
from rows import random_rows
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils.import_utils import is_flash_attn_2_available

from ramet.algorithms.logprobs import Entropy
from ramet.config.schema import Attention, Dtype, ModelConfig
from ramet.models.loading import load_model
from ramet.models.varlen import has_varlen
from ramet.policy.batching.packing import PackedLayout, micro_batch
from ramet.policy.batching.rows import Row
from ramet.policy.logprob_model import LogprobModel

LIMITS = {torch.float32: (1e-3, 1e-3), torch.bfloat16: (0.15, 0.05)}  # log-probabilities in nats; gradients, relative


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    attention: str
    dtype: str
    logprobs: float  # the largest
    gradient: float  # norm of the difference over the norm
    exact: bool

    def __str__(self) -> str:
        return f"{self.logprobs:.1e} nats, gradient {self.gradient:.1e}{'' if self.exact else ' LEAKS'}"


def check_packing(model: ModelConfig, *, cuda: bool, lengths: list[int], vocab: int) -> list[Difference]:
    rows = random_rows(len(lengths), 16, lengths, vocab)
    found = [_difference(replace(model, attention=kind, dtype=Dtype.FLOAT32), rows) for kind in _plain()]
    if cuda:
        kinds = [*_plain(), *([Attention.VARLEN] if has_varlen() else [])]
        kinds += [Attention.FLEX] if find_spec("triton") else []
        kinds += [Attention.FLASH] if is_flash_attn_2_available() else []
        found += [_difference(replace(model, attention=kind), rows) for kind in kinds]
    return found


def _plain() -> tuple[Attention, ...]:
    return Attention.SDPA, Attention.EAGER


def _difference(config: ModelConfig, rows: Sequence[Row]) -> Difference:
    model = load_model(config).train()
    packed = _pass(model, rows, [list(range(len(rows)))])
    alone = _pass(model, rows, [[i] for i in range(len(rows))])
    logprobs = float((packed[0] - alone[0]).abs().max())
    gradient = float((packed[1] - alone[1]).norm() / alone[1].norm())
    limits = LIMITS[next(model.parameters()).dtype]
    return Difference(
        attention=str(config.attention),
        dtype=str(config.dtype),
        logprobs=logprobs,
        gradient=gradient,
        exact=logprobs <= limits[0] and gradient <= limits[1],
    )


def _pass(model: PreTrainedModel, rows: Sequence[Row], groups: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Log-probabilities in the rows' order, and the gradient of their sum for every parameter, flat."""
    model.zero_grad(set_to_none=True)
    found = []
    for group in groups:
        batch = micro_batch(rows, group, PackedLayout.PACKED).to(model.device)
        scores = LogprobModel(model)(batch, 1.0, Entropy.NONE)
        scores.logprobs.sum().backward()
        found.append(scores.logprobs.detach())
    gradients = [p.grad.float().flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(found), torch.cat(gradients)
