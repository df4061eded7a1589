"""Computations on the device: prefill of parts of prompts, decode steps, and their numbers.

Deterministic computing always decodes all slots over the full cache length, and prefills one row at a time. Then the
shapes behind a sequence's numbers depend only on its own history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ramet.engines.checks import check_weights
from ramet.engines.protocol import Sampling
from ramet.engines.sequence import RunningSequence, Tokens
from ramet.engines.torch.forward import Forward, TokenBlock
from ramet.engines.torch.sampler import Draw, sample, top_logprobs, uniforms
from ramet.engines.torch.slots import CacheSlot

DENSE = 0.5  # share of active slots above which a range of slots is decoded with its gaps instead of gathered


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Tokens of one prompt to be computed, from position `start` of a slot on."""

    slot: int
    start: int
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class RunnerBatch:
    """The rows of decode steps; it stays the same until a sequence joins or leaves."""

    slots: list[int]
    sequences: list[RunningSequence | None]  # None: the row only pads
    rows: slice | Tensor  # the same slots, as a slice where they are a range
    active: Tensor  # [R] bool
    any_greedy: bool
    narrow: Tensor | None  # rows with top_p, top_k, min_p or a repetition penalty
    top: list[int]  # rows that want the most likely tokens' log-probabilities


class BatchState:
    """The device's data of every slot: the token to feed, its position, how to sample, and the sampled token.

    All tensors have one row per slot. A slot's position is always the number of tokens whose keys and values are valid.
    So a slot that only pads a batch writes after the end of its own sequence, or at the end of the cache where prompts
    are computed in the same pass; neither is ever read.
    """

    def __init__(self, slots: int, length: int, vocab_size: int, device: torch.device) -> None:
        self.device = device
        self._vocab_size = vocab_size
        self._seen: Tensor | None = None  # [slots, V] bool, made for the first request with a repetition penalty
        self.token = torch.zeros(slots, dtype=torch.int64, device=device)  # [slots]
        self.position = torch.zeros(slots, dtype=torch.int64, device=device)  # [slots]
        self.slot = torch.arange(slots, device=device)
        self._temperature = torch.ones(slots, dtype=torch.float32, device=device)
        self._top_p = torch.ones(slots, dtype=torch.float32, device=device)
        self._top_k = torch.zeros(slots, dtype=torch.int64, device=device)
        self._min_p = torch.zeros(slots, dtype=torch.float32, device=device)
        self._penalty = torch.ones(slots, dtype=torch.float32, device=device)
        self._uniform = torch.zeros(slots, length, dtype=torch.float64, device=device)  # [slots, length], by position
        self._logprobs = torch.zeros(slots, length, dtype=torch.float32, device=device)
        self._entropies = torch.zeros(slots, length, dtype=torch.float32, device=device)

    def start(self, slot: int, sampling: Sampling, seed: int, prompt: int, context: Tokens) -> None:
        """Prepare a slot to sample after a prompt of so many tokens. `context` is the prompt, and the tokens sampled
        before an update in flight; its last token is fed first.
        """
        self.token[slot] = int(context[-1])
        self._temperature[slot] = sampling.temperature
        self._top_p[slot] = sampling.top_p
        self._top_k[slot] = sampling.top_k
        self._min_p[slot] = sampling.min_p
        self._penalty[slot] = sampling.repetition_penalty
        if sampling.repetition_penalty != 1:
            self._note_seen(slot, context)
        drawn = uniforms(seed, prompt, sampling.max_tokens)
        self._uniform[slot, prompt - 1 : prompt - 1 + sampling.max_tokens] = drawn.to(self.device)

    def draw(self, rows: slice | Tensor, position: Tensor, *, any_greedy: bool, narrow: Tensor | None) -> Draw:
        """How the rows sample after the tokens at these positions `[R]`."""
        return Draw(
            temperature=self._temperature[rows],
            uniform=self._uniform[self.slot[rows], position],
            any_greedy=any_greedy,
            narrow=narrow,
            top_p=self._top_p[rows],
            top_k=self._top_k[rows],
            min_p=self._min_p[rows],
            penalty=self._penalty[rows],
            seen=None if self._seen is None else self._seen[rows],
        )

    def _note_seen(self, slot: int, context: Tokens) -> None:
        if self._seen is None:
            self._seen = torch.zeros(len(self.slot), self._vocab_size, dtype=torch.bool, device=self.device)
        self._seen[slot] = False
        self._seen[slot, torch.from_numpy(context.astype(np.int64)).to(self.device)] = True

    def advance(
        self, rows: slice | Tensor, active: Tensor, tokens: Tensor, logprobs: Tensor, entropies: Tensor
    ) -> None:
        """Record a decode step; all tensors are `[R]`. `active` is False for rows that only pad: their token stays."""
        slots, position = self.slot[rows], self.position[rows]
        self._logprobs[slots, position] = logprobs
        self._entropies[slots, position] = entropies
        if self._seen is not None:
            self._seen[slots, tokens.clamp_min(0)] |= active
        self.token[rows] = torch.where(active, tokens.clamp_min(0), self.token[rows])
        self.position[rows] = position + active

    def read(self, slot: int, start: int, count: int) -> tuple[list[float], list[float]]:
        """Log-probabilities and entropies of `count` tokens sampled from position `start` on."""
        fed = slice(start - 1, start - 1 + count)  # numbers are kept at the position of the token before
        return self._logprobs[slot, fed].tolist(), self._entropies[slot, fed].tolist()


def _is_narrow(sampling: Sampling) -> bool:
    """Whether its tokens are drawn from a part of the distribution."""
    cut = sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0
    return cut or sampling.repetition_penalty != 1


class ModelRunner:
    """Forward pass, cache and batch state. Knows slots, and not why requests come and go."""

    def __init__(self, forward: Forward, *, deterministic: bool) -> None:
        self.deterministic = deterministic
        self._forward = forward
        self._state = BatchState(forward.slots, forward.cache.length, forward.vocab_size, forward.device)

    def start(self, sequence: RunningSequence, target: CacheSlot) -> None:
        """Put a sequence into its slot, with the prefix that it shares."""
        if target.donor != target.slot:
            self._forward.cache.copy(target.donor, target.slot, target.cached)
        self._state.position[target.slot] = target.cached
        request = sequence.request
        self._state.start(target.slot, request.sampling, request.seed, len(sequence.prompt), sequence.context)

    @torch.inference_mode()
    def prefill(self, parts: Sequence[BatchPart]) -> None:
        """Compute keys and values of these parts, padded to the longest."""
        self._forward.prefill(self._block(parts))
        self._computed(parts)

    def _block(self, parts: Sequence[BatchPart]) -> TokenBlock:
        device = self._forward.device
        starts, counts = [p.start for p in parts], [len(p.tokens) for p in parts]
        tokens = torch.zeros(len(parts), max(counts), dtype=torch.int64)
        for row, part in enumerate(parts):
            tokens[row, : len(part.tokens)] = torch.from_numpy(part.tokens.copy())
        slots = torch.tensor([p.slot for p in parts], device=device)
        lengths = torch.tensor([starts, counts], device=device)
        ends = max(start + count for start, count in zip(starts, counts, strict=True))
        return self._forward.prompts(tokens.to(device), lengths[0], lengths[1], slots, self._forward.length(ends))

    def _computed(self, parts: Sequence[BatchPart]) -> None:
        for part in parts:
            self._state.position[part.slot] = part.start + len(part.tokens)

    def batch(self, decoding: Mapping[int, RunningSequence]) -> RunnerBatch:
        """The rows that decode the sequences of these slots."""
        slots = sorted(decoding)
        end = self._forward.slots if self.deterministic else slots[-1] + 1
        dense = self.deterministic or len(slots) >= DENSE * end
        row_slots = list(range(end)) if dense else slots
        sequences = [decoding.get(slot) for slot in row_slots]
        samplings = [s.request.sampling if s is not None else None for s in sequences]
        narrow = [i for i, sampling in enumerate(samplings) if sampling is not None and _is_narrow(sampling)]
        return RunnerBatch(
            slots=row_slots,
            sequences=sequences,
            rows=slice(0, end) if dense else torch.tensor(slots, device=self._forward.device),
            active=torch.tensor([s is not None for s in sequences], device=self._forward.device),
            any_greedy=any(sampling is not None and sampling.temperature == 0 for sampling in samplings),
            narrow=torch.tensor(narrow, device=self._forward.device) if narrow else None,
            top=[i for i, sequence in enumerate(sequences) if sequence is not None and sequence.wants_top],
        )

    @torch.inference_mode()
    def decode(self, batch: RunnerBatch, longest: int, parts: Sequence[BatchPart] = ()) -> list[int]:
        """Feed one token to every row and sample the next; -1 where the logits are not finite.

        `parts` of prompts of other sequences are computed in the same pass.
        """
        state, forward, rows = self._state, self._forward, batch.rows
        length = forward.cache.length if self.deterministic else forward.length(longest + 1)
        position, beside = state.position[rows], []
        if parts:  # a row that only pads may be in the slot of one of them, and must not write there
            position = torch.where(batch.active, position, forward.cache.scratch)
            beside = [self._block(parts)]
        logits = forward.decode(state.token[rows], position, state.slot[rows], rows, length, beside)
        draw = state.draw(rows, position, any_greedy=batch.any_greedy, narrow=batch.narrow)
        tokens, logprobs, entropies = sample(logits, draw)
        state.advance(rows, batch.active, tokens, logprobs, entropies)
        self._computed(parts)
        if batch.top:
            self._note_top(batch, logits, draw, tokens)
        sampled: list[int] = tokens.tolist()
        return sampled

    def _note_top(self, batch: RunnerBatch, logits: Tensor, draw: Draw, tokens: Tensor) -> None:
        """Compute it for all rows, so that the shape is the same for every caller."""
        asking = [asker for i in batch.top if (asker := batch.sequences[i]) is not None and asker.wants_top]
        if not asking:
            return
        k = max(asker.request.top_logprobs for asker in asking)
        top = top_logprobs(logits, draw.temperature, tokens, k)
        for i in batch.top:
            sequence = batch.sequences[i]
            if sequence is not None and sequence.wants_top:
                sequence.top_logprobs.append(top[i])

    def read(self, sequence: RunningSequence) -> None:
        """Fetch the numbers of the tokens that it has sampled since the last time."""
        done = len(sequence.logprobs)
        if done == len(sequence.sampled):
            return
        start, count = len(sequence.prompt) + done, len(sequence.sampled) - done
        logprobs, entropies = self._state.read(sequence.slot, start, count)
        sequence.logprobs.extend(logprobs)
        sequence.entropies.extend(entropies)

    @torch.no_grad()
    def load(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        """Copy new weights into the model. Raises `ValueError`, and changes nothing, if they do not fit."""
        check_weights(self._forward.model, weights)
        self._forward.load(weights)

    def clear(self, slot: int, start: int) -> None:
        """Remove values that are not finite from a slot, whose sequence is `start` tokens long now."""
        self._forward.cache.clear(slot, start)
        self._state.position[slot] = start

    def reset(self, *, clear: bool) -> None:
        """All slots are empty; `clear` where the cache may have numbers that are not finite."""
        self._state.position.zero_()
        if clear:
            self._forward.cache.zero()
