"""The loss of fine-tuning without all logits at once: for a batch of 16 x 4096 tokens and 152,000 words they would be
37 GiB in float32, and twice that in the backward pass.

As in training with rewards (`ramet.algorithms.logprobs`), only positions that predict a trained token go through the
output head, a piece at a time, and pieces are computed again in the backward pass. The numbers are those of
transformers' own loss, up to rounding. All ranks have as many pieces: under ZeRO-3 they gather the head for each.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from ramet.algorithms.logprobs import CHUNK_ELEMENTS, logprobs_from_hidden, n_pieces
from ramet.errors import ConfigError
from ramet.policy.logprob_model import check_head
from ramet.sft.batches import IGNORED

logger = logging.getLogger(__name__)


def bound_loss(model: PreTrainedModel, tokens: int) -> None:
    """If the logits of so many tokens are too many to be held at once, let the model's forward pass give the loss in
    pieces, and nothing else. What wraps the model calls the same forward, and stays right.

    A model that changes its logits after the head keeps the loss of transformers.
    """
    if tokens * int(model.config.vocab_size) <= CHUNK_ELEMENTS:
        return
    try:
        check_head(model)
    except ConfigError as error:
        logger.warning("the loss holds the logits of all %d tokens of a batch at once: %s", tokens, error)
        return
    model.forward = partial(_forward, model)


def _forward(
    model: PreTrainedModel,
    input_ids: Tensor,  # [B, S]
    labels: Tensor,  # [B, S], of the same positions; the model predicts each from the one before it
    num_items_in_batch: Tensor | int | None = None,
    **_: Any,
) -> CausalLMOutput:
    """`num_items_in_batch`: trained tokens of the whole optimiser step; None: those here."""
    body: Any = model.base_model
    hidden = body(input_ids=input_ids, use_cache=False).last_hidden_state[:, :-1]  # [B, S - 1, H]
    targets = labels[:, 1:]
    trained = targets != IGNORED
    wanted, vocab_size = targets[trained], int(model.config.vocab_size)
    logprobs, _entropies = logprobs_from_hidden(
        hidden[trained],
        model.get_output_embeddings(),  # type: ignore[no-untyped-call]
        wanted,
        1.0,
        vocab_size=vocab_size,
        chunk_elements=CHUNK_ELEMENTS,
        min_pieces=_most(n_pieces(len(wanted), vocab_size, CHUNK_ELEMENTS), wanted.device),
    )
    count = num_items_in_batch if num_items_in_batch is not None else trained.sum().clamp(min=1)
    return CausalLMOutput(loss=-logprobs.sum() / count)  # type: ignore[arg-type]


def _most(value: int, device: torch.device) -> int:
    """The largest value of all ranks, which call this together."""
    if not dist.is_initialized():
        return value
    most = torch.tensor(value, device=device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return int(most)
