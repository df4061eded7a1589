"""The loss of fine-tuning without all logits at once: for 16,384 tokens and 152,000 words they would be 9 GiB in
float32, and twice that in the backward pass.

As in training with rewards (`ramet.algorithms.logprobs`), only positions that predict a trained token go through the
output head, a piece at a time, and pieces are computed again in the backward pass. All ranks have as many pieces: under
ZeRO-3 they gather the head for each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from ramet.algorithms.logprobs import CHUNK_ELEMENTS, logprobs_from_hidden, logprobs_from_logits, n_pieces
from ramet.errors import ConfigError
from ramet.policy.batching.packing import MicroBatch
from ramet.policy.logprob_model import check_head

logger = logging.getLogger(__name__)


def inputs_of(batch: MicroBatch) -> dict[str, Tensor]:
    """Inputs of the forward pass that `give_loss` makes, from a micro-batch."""
    return {
        "input_ids": batch.input_ids,
        "position_ids": batch.position_ids,
        "predict": batch.predict,
        "targets": batch.targets,
    }


def give_loss(model: PreTrainedModel, tokens: int) -> None:
    """Let the model's forward pass give only the sum of `-log p` over the trained tokens of a micro-batch. Wrappers of
    the model call the same forward, and stay right. `tokens`: the most that a micro-batch has.

    Of a model that changes its logits after the head all logits are held at once, with a warning where those are many.
    """
    try:
        check_head(model)
    except ConfigError as error:
        if tokens * int(model.config.vocab_size) > CHUNK_ELEMENTS:
            logger.warning("the loss keeps the logits of all %d tokens of a micro-batch at once: %s", tokens, error)
        model.forward = partial(_whole, model.forward)
        return
    model.forward = partial(_in_pieces, model)


def _in_pieces(
    model: PreTrainedModel,
    input_ids: Tensor,  # [B, S]
    position_ids: Tensor,  # [B, S]
    predict: Tensor,  # [n] of the flat [B * S]
    targets: Tensor,  # [n]
) -> CausalLMOutput:
    body: Any = model.base_model
    hidden = body(input_ids=input_ids, position_ids=position_ids, use_cache=False).last_hidden_state  # [B, S, H]
    vocab_size = int(model.config.vocab_size)
    logprobs, _entropies = logprobs_from_hidden(
        hidden.flatten(0, 1)[predict],
        model.get_output_embeddings(),  # type: ignore[no-untyped-call]
        targets,
        1.0,
        vocab_size=vocab_size,
        chunk_elements=CHUNK_ELEMENTS,
        min_pieces=_most(n_pieces(len(targets), vocab_size, CHUNK_ELEMENTS)),
    )
    return CausalLMOutput(loss=-logprobs.sum())  # type: ignore[arg-type]


def _whole(
    forward: Callable[..., Any], input_ids: Tensor, position_ids: Tensor, predict: Tensor, targets: Tensor
) -> CausalLMOutput:
    """Compute `_in_pieces` from all logits of the model's own forward pass."""
    logits: Tensor = forward(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
    logprobs, _entropies = logprobs_from_logits(logits.flatten(0, 1)[predict], targets, 1.0)
    return CausalLMOutput(loss=-logprobs.sum())  # type: ignore[arg-type]


def _most(value: int) -> int:
    """The largest value of all ranks, which call this together. In host memory: no rank waits for its GPU."""
    if not dist.is_initialized():
        return value
    most = torch.tensor(value)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return int(most)
