"""Is a packed micro-batch exact on this device, and one with every prefix once? Each attention that runs here against
one row at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

import torch
from rows import forked_rows, random_rows
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils.import_utils import is_flash_attn_2_available

from ramet.algorithms.logprobs import Entropy
from ramet.config.schema import Attention, Dtype, ModelConfig
from ramet.models.loading import load_model
from ramet.models.varlen import has_varlen
from ramet.policy.batching.packing import MicroBatch, PackedLayout, micro_batch
from ramet.policy.batching.rows import Row
from ramet.policy.batching.shared import shared_micro_batch
from ramet.policy.logprob_model import LogprobModel
from ramet.policy.models import row_cost
from ramet.policy.shared_attention import install_shared_attention

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
    """Rows of these lengths, packed into one."""
    rows, kinds = random_rows(len(lengths), 16, lengths, vocab), [Attention.SDPA, Attention.EAGER]
    found = [_difference(replace(model, attention=kind, dtype=Dtype.FLOAT32), rows, _packed) for kind in kinds]
    if cuda:
        kinds += _on_cuda() + ([Attention.FLASH] if is_flash_attn_2_available() else [])
        found += [_difference(replace(model, attention=kind), rows, _packed) for kind in kinds]
    return found


def check_sharing(model: ModelConfig, *, cuda: bool, response: int, vocab: int) -> list[Difference]:
    """Two groups of four rollouts with forks, every prefix computed once."""
    rows, kinds = forked_rows(2, 4, response // 2, response, vocab), [Attention.SDPA]
    found = [_difference(replace(model, attention=kind, dtype=Dtype.FLOAT32), rows, _shared) for kind in kinds]
    if cuda:
        found += [_difference(replace(model, attention=kind), rows, _shared) for kind in kinds + _on_cuda()]
    return found


def _on_cuda() -> list[Attention]:
    varlen = [Attention.VARLEN] if has_varlen() else []
    return varlen + ([Attention.FLEX] if find_spec("triton") else [])


def _packed(model: PreTrainedModel, rows: Sequence[Row]) -> MicroBatch:
    return micro_batch(rows, range(len(rows)), PackedLayout.PACKED)


def _shared(model: PreTrainedModel, rows: Sequence[Row]) -> MicroBatch:
    install_shared_attention(model)
    batch = shared_micro_batch(rows, range(len(rows)), row_cost(model, model.device))
    if batch.attention is None:
        raise AssertionError("these rows share nothing")
    return batch


def _difference(
    config: ModelConfig, rows: Sequence[Row], together: Callable[[PreTrainedModel, Sequence[Row]], MicroBatch]
) -> Difference:
    model = load_model(config).train()
    alone = _pass(model, [micro_batch(rows, [i], PackedLayout.PACKED) for i in range(len(rows))])
    one_pass = _pass(model, [together(model, rows)])
    logprobs = float((one_pass[0] - alone[0]).abs().max())
    gradient = float((one_pass[1] - alone[1]).norm() / alone[1].norm())
    limits = LIMITS[next(model.parameters()).dtype]
    return Difference(
        attention=str(config.attention),
        dtype=str(config.dtype),
        logprobs=logprobs,
        gradient=gradient,
        exact=logprobs <= limits[0] and gradient <= limits[1],
    )


def _pass(model: PreTrainedModel, batches: Sequence[MicroBatch]) -> tuple[Tensor, Tensor]:
    """Log-probabilities in the rows' order, and the gradient of their sum for every parameter, flat."""
    model.zero_grad(set_to_none=True)
    found: dict[int, Tensor] = {}
    for batch in batches:
        scores = LogprobModel(model)(batch.to(model.device), 1.0, Entropy.NONE)
        scores.logprobs.sum().backward()
        pieces = scores.logprobs.detach().split(list(batch.lengths))
        found.update(zip(batch.rows, pieces, strict=True))
    gradients = [p.grad.float().flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat([found[i] for i in sorted(found)]), torch.cat(gradients)
