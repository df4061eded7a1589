"""Log-probabilities and entropies of the trained tokens: one forward pass, and its results in the order of the rows.

Only positions that predict a trained token go through the output head, which is most of the memory and, for small
models, much of the time. That needs a model whose logits are its head's output and nothing else: `check_head`.

Body, head and log-probabilities are one module, since the head is used outside the model's own forward pass: FSDP
gathers weights where a module's forward begins, so what is sharded must begin here; then tied embeddings are one
parameter of one group too.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from transformers import PreTrainedModel

from ramet.algorithms.logprobs import Entropy, logprobs_from_hidden
from ramet.errors import ConfigError
from ramet.policy.batching.gather import gathered
from ramet.policy.batching.packing import MicroBatch
from ramet.policy.batching.rows import Floats, Row
from ramet.policy.distributed.ulysses import join_values, ulysses_states
from ramet.policy.shared_attention import shared_attention

TRIED_TOKENS, LARGE_LOGIT = 64, 100.0  # of the check of the output head


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """On the response axis T of a micro-batch; 0, and without a gradient, on tokens that were not sampled."""

    logprobs: Tensor  # [T] float32
    entropies: Tensor | None  # [T] float32, nats
    mask: Tensor  # [T] bool


class LogprobModel(nn.Module):
    """`group` are the ranks that share each sequence (Ulysses); None: each rank has its own."""

    def __init__(self, model: PreTrainedModel, group: ProcessGroup | None = None) -> None:
        super().__init__()
        self.model = model
        self.group = group

    def forward(self, batch: MicroBatch, temperature: float, entropy: Entropy) -> tuple[Tensor, Tensor | None, Tensor]:
        """The fields of `TokenLogprobs`: FSDP finds tensors in tuples, not in our classes."""
        tokens = token_logprobs(self.model, batch, temperature, entropy, self.group)
        return tokens.logprobs, tokens.entropies, tokens.mask

    def token_logprobs(self, batch: MicroBatch, temperature: float, entropy: Entropy) -> TokenLogprobs:
        """One forward pass, as `token_logprobs` of this module; under FSDP all ranks call it together."""
        logprobs, entropies, mask = self(batch, temperature, entropy)
        return TokenLogprobs(logprobs=logprobs, entropies=entropies, mask=mask)


def token_logprobs(
    model: PreTrainedModel,
    batch: MicroBatch,
    temperature: float,
    entropy: Entropy,
    group: ProcessGroup | None = None,
) -> TokenLogprobs:
    """One forward pass. Gradients flow if they are enabled. `group`: the ranks that share the sequences (Ulysses)."""
    # Hidden states [m, H] that predict trained tokens: all n of them or, with Ulysses, those of this rank's positions,
    # where `own` [m] indexes into the n.
    n = len(batch.targets)
    if group is None:
        states, own = gathered(hidden_states(model, batch).flatten(0, 1), batch.predict), None
    else:
        states, own = ulysses_states(model, batch.input_ids, batch.position_ids, batch.predict, group, batch.attention)
    # [m] each; the head's logits [m, V] exist only a piece at a time.
    logprobs, entropies = logprobs_from_hidden(
        states,
        _head(model),
        batch.targets if own is None else batch.targets[own],
        temperature,
        vocab_size=model.config.vocab_size,
        entropy=entropy,
    )
    # [m] of each rank -> [n] on every rank
    if group is not None and own is not None:
        logprobs = join_values(logprobs, own, n, group)
        entropies = entropies if entropy is Entropy.NONE else join_values(entropies, own, n, group)
    # [n] -> [T]: 0 on inserted tokens
    on_responses = batch.on_responses(logprobs)
    return TokenLogprobs(
        logprobs=on_responses,
        entropies=None if entropy is Entropy.NONE else batch.on_responses(entropies),
        mask=torch.zeros_like(on_responses, dtype=torch.bool).index_fill(0, batch.response, True),
    )


def hidden_states(model: PreTrainedModel, batch: MicroBatch) -> Tensor:
    """`[B, S, H]` after the last norm. `use_cache=False` is what makes packing exact: with a cache, samples leak."""
    body: Any = model.base_model
    shared = {} if batch.attention is None else shared_attention(batch.attention, batch.input_ids.device)
    output = body(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False, **shared)
    hidden: Tensor = output.last_hidden_state
    return hidden


def check_head(model: PreTrainedModel) -> None:
    """Raise `ConfigError` for a model that does more to its logits than its output head (soft caps, scales).

    Tried on a model of one block and few tokens with random weights, in host memory: `model` itself may have no weights
    yet, and an attention that only its device computes.
    """
    small = _one_block(model)
    weight = _head(small).get_parameter("weight")
    ids = torch.tensor([[0, 1]])
    with torch.no_grad():
        weight.mul_(LARGE_LOGIT / _logits(small, ids).abs().max())  # a soft cap changes only large logits
        ours, theirs = _logits(small, ids), small(input_ids=ids, use_cache=False).logits
    if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3):
        raise ConfigError(
            f"model.path: {type(model).__name__} changes its logits after the output head; allowed: models whose "
            "logits are the head's output, such as Qwen2, Qwen3 and Llama"
        )


def _one_block(model: PreTrainedModel) -> PreTrainedModel:
    """Of the same class, with the first block's options; torch's random numbers go on as if it were not there."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers, config.vocab_size, config.pad_token_id = 1, TRIED_TOKENS, None
    if vars(config).get("layer_types"):
        config.layer_types = config.layer_types[:1]
    config._attn_implementation = "sdpa" if model._supports_sdpa else "eager"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        small: PreTrainedModel = type(model)(config)
    small.float().train(False)  # type: ignore[no-untyped-call]
    return small


def _logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    body: Any = model.base_model
    logits: Tensor = _head(model)(body(input_ids=ids, use_cache=False).last_hidden_state)
    return logits


def _head(model: PreTrainedModel) -> torch.nn.Module:
    head: torch.nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head


@dataclass(slots=True, kw_only=True)
class LogprobResult:
    """What one rank has computed, or all: one array per row in `rows`, over its response."""

    rows: list[int] = field(default_factory=list)
    logprobs: list[Floats] = field(default_factory=list)
    entropies: list[Floats] = field(default_factory=list)  # nats; empty if they were not computed

    def add(self, tokens: TokenLogprobs, batch: MicroBatch) -> None:
        self.rows.extend(batch.rows)
        self.logprobs.extend(_by_row(tokens.logprobs, batch))
        if tokens.entropies is not None:
            self.entropies.extend(_by_row(tokens.entropies, batch))


def in_row_order(rows: Sequence[Row], parts: Sequence[LogprobResult]) -> LogprobResult:
    """All parts as one, in the order of `rows`. Ranks that share sequences have the same; any of them is taken."""
    out = LogprobResult(rows=list(range(len(rows))), logprobs=[_zeros(row) for row in rows])
    out.entropies = [_zeros(row) for row in rows]
    for part in parts:
        for i, index in enumerate(part.rows):
            out.logprobs[index] = part.logprobs[i]
            if part.entropies:
                out.entropies[index] = part.entropies[i]
    return out


def _by_row(values: Tensor, batch: MicroBatch) -> list[Floats]:
    """`[T]` cut into one array per row, in host memory."""
    return [piece.numpy().copy() for piece in torch.split(values.cpu(), list(batch.lengths))]


def _zeros(row: Row) -> Floats:
    return np.zeros(len(row.response_ids), np.float32)
