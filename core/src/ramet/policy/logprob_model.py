"""Log-probabilities and entropies of the trained tokens: one forward pass, and its results in the order of the rows.

Only positions that predict a trained token go through the output head, which is most of the memory and, for small
models, much of the time. That needs a model whose logits are its head's output and nothing else: `check_head`.

Body, head and log-probabilities are one module, since the head is used outside the model's own forward pass: FSDP
gathers weights where a module's forward begins, so what is sharded must begin here; then tied embeddings are one
parameter of one group too.
"""

from __future__ import annotations

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
from ramet.policy.batching.batch import Floats, Row
from ramet.policy.batching.packing import MicroBatch
from ramet.policy.distributed.ulysses import join, ulysses_states


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """On the response axis of a micro-batch; 0, and without a gradient, where nothing was sampled."""

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
        """The fields of `TokenScores`: FSDP finds tensors in tuples, not in our classes."""
        scores = score_tokens(self.model, batch, temperature, entropy, self.group)
        return scores.logprobs, scores.entropies, scores.mask

    def score(self, batch: MicroBatch, temperature: float, entropy: Entropy) -> TokenScores:
        logprobs, entropies, mask = self(batch, temperature, entropy)
        return TokenScores(logprobs=logprobs, entropies=entropies, mask=mask)


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


@dataclass(slots=True, kw_only=True)
class LogprobResult:
    """One array per row in `rows`, over its response."""

    rows: list[int] = field(default_factory=list)
    logprobs: list[Floats] = field(default_factory=list)
    entropies: list[Floats] = field(default_factory=list)  # empty if nobody asked for them

    def add(self, scores: TokenScores, batch: MicroBatch) -> None:
        self.rows.extend(batch.rows)
        self.logprobs.extend(_pieces(scores.logprobs, batch))
        if scores.entropies is not None:
            self.entropies.extend(_pieces(scores.entropies, batch))


def in_order(rows: Sequence[Row], parts: Sequence[LogprobResult]) -> LogprobResult:
    """All parts as one, in the order of `rows`. Ranks that share sequences bring the same, and one of them is taken."""
    out = LogprobResult(rows=list(range(len(rows))), logprobs=[_zeros(row) for row in rows])
    out.entropies = [_zeros(row) for row in rows]
    for part in parts:
        for i, index in enumerate(part.rows):
            out.logprobs[index] = part.logprobs[i]
            if part.entropies:
                out.entropies[index] = part.entropies[i]
    return out


def _pieces(values: Tensor, batch: MicroBatch) -> list[Floats]:
    return [piece.numpy().copy() for piece in torch.split(values.cpu(), list(batch.lengths))]


def _zeros(row: Row) -> Floats:
    return np.zeros(len(row.response_ids), np.float32)
