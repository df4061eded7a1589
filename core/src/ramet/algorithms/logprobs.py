"""Log-probabilities and entropies from logits: in float32, at the sampling temperature, a bounded piece at a time.

Both are exact: the softmax runs over the whole vocabulary. Only the memory is cut: at most `CHUNK_ELEMENTS` logits
exist at once, and with gradients the pieces are computed again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_ELEMENTS = 2**27  # logits held at once: 512 MiB in float32


class Entropy(StrEnum):
    """What to do about entropies."""

    NONE = "none"
    DETACHED = "detached"  # for metrics
    GRADIENT = "gradient"  # for losses


def logprobs_from_logits(
    logits: Tensor, targets: Tensor, temperature: float, entropy: Entropy = Entropy.NONE
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of `targets` `[n]` under `logits` `[n, V]`, and entropies `[n]` (empty with `Entropy.NONE`).

    Temperature 0 means greedy sampling, whose probabilities are those at temperature 1.
    """
    scaled = logits.float() if temperature in (0, 1) else logits.float() / temperature  # saves a copy of all logits
    logprobs = torch.log_softmax(scaled, dim=-1)  # [n, V]
    chosen = logprobs.gather(-1, targets[:, None]).squeeze(-1)
    if entropy is Entropy.NONE:
        return chosen, chosen.new_empty(0)
    source = logprobs if entropy is Entropy.GRADIENT else logprobs.detach()
    return chosen, -(source.exp() * source).sum(-1)


def logprobs_from_hidden(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    targets: Tensor,
    temperature: float,
    *,
    vocab_size: int,
    entropy: Entropy = Entropy.NONE,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """As `logprobs_from_logits`, from hidden states `[n, H]` through the output head, piece by piece."""

    def piece(states: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        return logprobs_from_logits(head(states), wanted, temperature, entropy)

    # Pieces of so many positions that their logits [rows, V] have at most `chunk_elements`.
    rows = max(1, chunk_elements // vocab_size)
    if len(targets) <= rows:
        return piece(hidden, targets)
    pieces = []
    for states, wanted in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
        if torch.is_grad_enabled():
            result = checkpoint(piece, states, wanted, use_reentrant=False, preserve_rng_state=False)
        else:
            result = piece(states, wanted)
        pieces.append(cast("tuple[Tensor, Tensor]", result))
    return torch.cat([p[0] for p in pieces]), torch.cat([p[1] for p in pieces])
