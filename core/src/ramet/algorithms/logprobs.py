"""Log-probabilities and entropies from logits: in float32, at the sampling temperature, a bounded piece at a time.

Both are exact: the softmax runs over the full vocabulary. Only memory is limited: at most `CHUNK_ELEMENTS` logits exist
at once, and with gradients the pieces are computed again in the backward pass.
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
    """The treatment of entropies."""

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
    of_targets = logprobs.gather(-1, targets[:, None]).squeeze(-1)
    if entropy is Entropy.NONE:
        return of_targets, of_targets.new_empty(0)
    source = logprobs if entropy is Entropy.GRADIENT else logprobs.detach()
    return of_targets, -(source.exp() * source).sum(-1)


def logprobs_from_hidden(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    targets: Tensor,
    temperature: float,
    *,
    vocab_size: int,
    entropy: Entropy = Entropy.NONE,
    chunk_elements: int = CHUNK_ELEMENTS,
    min_pieces: int = 1,
) -> tuple[Tensor, Tensor]:
    """Compute `logprobs_from_logits` from hidden states `[n, H]` through the output head, piece by piece.

    `min_pieces` is for a head whose every call is a collective of ranks: if a rank has fewer, empty ones follow.
    """

    def piece(states: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        return logprobs_from_logits(head(states), wanted, temperature, entropy)

    # Pieces of so many positions that their logits [rows, V] have at most `chunk_elements`.
    rows = _piece_rows(vocab_size, chunk_elements)
    if len(targets) <= rows and min_pieces <= 1:
        return piece(hidden, targets)
    cut = list(zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True))
    cut += [(hidden[:0], targets[:0])] * (min_pieces - len(cut))
    pieces = []
    for states, wanted in cut:
        if torch.is_grad_enabled():
            result = checkpoint(piece, states, wanted, use_reentrant=False, preserve_rng_state=False)
        else:
            result = piece(states, wanted)
        pieces.append(cast("tuple[Tensor, Tensor]", result))
    return torch.cat([p[0] for p in pieces]), torch.cat([p[1] for p in pieces])


def n_pieces(n: int, vocab_size: int, chunk_elements: int = CHUNK_ELEMENTS) -> int:
    """How often `logprobs_from_hidden` calls the head for `n` positions."""
    return max(1, -(-n // _piece_rows(vocab_size, chunk_elements)))


def _piece_rows(vocab_size: int, chunk_elements: int) -> int:
    return max(1, chunk_elements // vocab_size)
