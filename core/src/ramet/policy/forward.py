"""The forward pass of training: log-probabilities and entropies of the trained tokens of one micro-batch.

Only positions that predict a trained token go through the output head, which is most of the memory and, for small
models, much of the time. That needs a model whose logits are its head's output and nothing else: `check_head`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from transformers import PreTrainedModel

from ramet.algorithms.logprobs import Entropy, logprobs_from_hidden
from ramet.errors import ConfigError
from ramet.policy.batching.packing import MicroBatch
from ramet.policy.distributed.ulysses import join, ulysses_states


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """On the response axis of a micro-batch; 0, and without a gradient, where nothing was sampled."""

    logprobs: Tensor  # [T] float32
    entropies: Tensor | None  # [T] float32, nats
    mask: Tensor  # [T] bool


def score_tokens(
    model: PreTrainedModel,
    batch: MicroBatch,
    temperature: float,
    entropy: Entropy,
    group: ProcessGroup | None = None,
) -> TokenScores:
    """One forward pass. Gradients flow if they are enabled. `group`: the ranks that share the sequences (Ulysses)."""
    n = len(batch.targets)
    if group is None:
        states, own = hidden_states(model, batch).flatten(0, 1)[batch.predict], None
    else:
        states, own = ulysses_states(model, batch.input_ids, batch.position_ids, batch.predict, group)
    logprobs, entropies = logprobs_from_hidden(
        states,
        _head(model),
        batch.targets if own is None else batch.targets[own],
        temperature,
        vocab_size=model.config.vocab_size,
        entropy=entropy,
    )
    if group is not None and own is not None:
        logprobs = join(logprobs, own, n, group)
        entropies = entropies if entropy is Entropy.NONE else join(entropies, own, n, group)
    zeros = logprobs.new_zeros(sum(batch.lengths))
    return TokenScores(
        logprobs=zeros.index_put((batch.response,), logprobs),
        entropies=None if entropy is Entropy.NONE else zeros.index_put((batch.response,), entropies),
        mask=torch.zeros_like(zeros, dtype=torch.bool).index_fill(0, batch.response, True),
    )


def hidden_states(model: PreTrainedModel, batch: MicroBatch) -> Tensor:
    """`[B, S, H]` behind the last norm. `use_cache=False` is what makes packing exact: with a cache, samples leak."""
    body: Any = model.base_model
    output = body(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False)
    hidden: Tensor = output.last_hidden_state
    return hidden


def check_head(model: PreTrainedModel) -> None:
    """Raise `ConfigError` for a model that does more to its logits than its output head (soft caps, scales)."""
    ids = torch.tensor([[0, 1]], device=model.device)
    with torch.no_grad():
        body: Any = model.base_model
        ours = _head(model)(body(input_ids=ids, use_cache=False).last_hidden_state)
        theirs = model(input_ids=ids, use_cache=False).logits
    if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3):
        raise ConfigError(
            f"model.path: {type(model).__name__} changes its logits behind the output head; allowed: models whose "
            "logits are the head's output, such as Qwen2, Qwen3 and Llama"
        )


def _head(model: PreTrainedModel) -> torch.nn.Module:
    head: torch.nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head
