"""Log-probabilities and entropies of the trained tokens: one forward pass.

Only positions that predict a trained token go through the output head, which is most of the memory and, for small
models, much of the time. That needs a model whose logits are exactly its head's output: `check_head`.

Body, head and log-probabilities are one module, since the head is used outside the model's own forward pass. FSDP
gathers weights where a module's forward begins, so sharding must begin here. Then tied embeddings are one parameter of
one group too.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from transformers import PreTrainedModel

from ramet.algorithms.logprobs import Entropy, logprobs_from_hidden
from ramet.errors import ConfigError
from ramet.policy.batching.gather import gathered
from ramet.policy.batching.packing import MicroBatch
from ramet.policy.distributed.ulysses import join_values, ulysses_states
from ramet.policy.shared_attention import shared_attention

TRIED_TOKENS, LARGE_LOGIT = 64, 100.0  # of the check of the output head


class TokenLogprobs(NamedTuple):
    """Values on the response axis T of a micro-batch; 0, and without a gradient, on tokens that were not sampled.

    A tuple, in which FSDP finds tensors.
    """

    logprobs: Tensor  # [T] float32
    entropies: Tensor | None  # [T] float32, nats


class LogprobModel(nn.Module):
    """`group` are the ranks that share each sequence (Ulysses); None: each rank has its own."""

    def __init__(self, model: PreTrainedModel, group: ProcessGroup | None = None) -> None:
        super().__init__()
        self.model = model
        self.group = group

    def forward(self, batch: MicroBatch, temperature: float, entropy: Entropy) -> TokenLogprobs:
        """One forward pass. Gradients flow if they are enabled. Under FSDP all ranks call it together."""
        # Hidden states [m, H] that predict trained tokens: all n of them or, with Ulysses, only this rank's positions,
        # where `own` [m] indexes into the n.
        model, group, n = self.model, self.group, len(batch.targets)
        if group is None:
            states, own_indices = gathered(hidden_states(model, batch).flatten(0, 1), batch.predict), None
        else:
            states, own_indices = ulysses_states(
                model, batch.input_ids, batch.position_ids, batch.predict, group, batch.attention
            )
        # [m] each; the head's logits [m, V] exist only a piece at a time.
        logprobs, entropies = logprobs_from_hidden(
            states,
            _head(model),
            batch.targets if own_indices is None else batch.targets[own_indices],
            temperature,
            vocab_size=model.config.vocab_size,
            entropy=entropy,
        )
        # [m] of each rank -> [n] on every rank
        if group is not None and own_indices is not None:
            logprobs = join_values(logprobs, own_indices, n, group)
            entropies = entropies if entropy is Entropy.NONE else join_values(entropies, own_indices, n, group)
        # [n] -> [T]: 0 on inserted tokens
        return TokenLogprobs(
            logprobs=batch.on_responses(logprobs),
            entropies=None if entropy is Entropy.NONE else batch.on_responses(entropies),
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
    """Build one of the same class, with the first block's options; torch's random numbers continue as without it."""
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
