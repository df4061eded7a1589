"""What runs on the device: prefill of parts of prompts, decode steps, and the numbers that they leave behind.

Deterministic computing always decodes all lanes over the whole cache length, and prefills one row at a time: then the
shapes behind a sequence's numbers depend on its own history alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ramet.engines.sequence import RunningSequence, Tokens
from ramet.engines.torch.batch_state import BatchState
from ramet.engines.torch.forward import Forward
from ramet.engines.torch.sampler import sample
from ramet.engines.torch.slots import CacheSlot
from ramet.engines.weights import copy_weights

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
    narrow: Tensor | None  # rows with top_p or top_k


class ModelRunner:
    """Forward pass, cache and lanes. Knows slots, not requests' fates."""

    def __init__(self, forward: Forward, *, deterministic: bool) -> None:
        self.deterministic = deterministic
        self._forward = forward
        self._lanes = BatchState(forward.slots, forward.cache.length, forward.device)

    def start(self, sequence: RunningSequence, place: CacheSlot) -> None:
        """Put a sequence into its slot, with the prefix that it shares."""
        if place.donor != place.slot:
            self._forward.cache.copy(place.donor, place.slot, place.cached)
        self._lanes.position[place.slot] = place.cached
        request, token = sequence.request, int(sequence.context[-1])
        self._lanes.start(place.slot, request.sampling, request.seed, len(sequence.prompt), token)

    @torch.inference_mode()
    def prefill(self, parts: Sequence[BatchPart]) -> None:
        """Compute keys and values of these parts, padded to the longest."""
        device = self._forward.device
        starts, counts = [p.start for p in parts], [len(p.tokens) for p in parts]
        tokens = torch.zeros(len(parts), max(counts), dtype=torch.int64)
        for row, part in enumerate(parts):
            tokens[row, : len(part.tokens)] = torch.from_numpy(part.tokens.copy())
        slots = torch.tensor([p.slot for p in parts], device=device)
        lengths = torch.tensor([starts, counts], device=device)
        ends = max(start + count for start, count in zip(starts, counts, strict=True))
        self._forward.prefill(tokens.to(device), lengths[0], lengths[1], slots, self._forward.length(ends))
        self._lanes.position[slots] = lengths.sum(dim=0)

    def batch(self, decoding: Mapping[int, RunningSequence]) -> RunnerBatch:
        """The rows that decode the sequences of these slots."""
        slots = sorted(decoding)
        end = self._forward.slots if self.deterministic else slots[-1] + 1
        dense = self.deterministic or len(slots) >= DENSE * end
        chosen = list(range(end)) if dense else slots
        sequences = [decoding.get(slot) for slot in chosen]
        samplings = [s.request.sampling if s is not None else None for s in sequences]
        narrow = [i for i, one in enumerate(samplings) if one is not None and (one.top_p < 1 or one.top_k > 0)]
        return RunnerBatch(
            slots=chosen,
            sequences=sequences,
            rows=slice(0, end) if dense else torch.tensor(slots, device=self._forward.device),
            active=torch.tensor([s is not None for s in sequences], device=self._forward.device),
            any_greedy=any(one is not None and one.temperature == 0 for one in samplings),
            narrow=torch.tensor(narrow, device=self._forward.device) if narrow else None,
        )

    @torch.inference_mode()
    def decode(self, batch: RunnerBatch, longest: int) -> list[int]:
        """Feed one token to every row and sample the next; -1 where the logits are not finite."""
        lanes, forward, rows = self._lanes, self._forward, batch.rows
        length = forward.cache.length if self.deterministic else forward.length(longest + 1)
        position = lanes.position[rows]
        logits = forward.decode(lanes.token[rows], position, lanes.slot[rows], rows, length)
        draw = lanes.draw(rows, position, any_greedy=batch.any_greedy, narrow=batch.narrow)
        tokens, logprobs, entropies = sample(logits, draw)
        lanes.advance(rows, batch.active, tokens, logprobs, entropies)
        sampled: list[int] = tokens.tolist()
        return sampled

    def read(self, sequence: RunningSequence) -> None:
        """Fetch the numbers of the tokens that it has sampled since the last time."""
        done = len(sequence.logprobs)
        if done == len(sequence.sampled):
            return
        start, count = len(sequence.prompt) + done, len(sequence.sampled) - done
        logprobs, entropies = self._lanes.read(sequence.slot, start, count)
        sequence.logprobs.extend(logprobs)
        sequence.entropies.extend(entropies)

    def load(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        """Copy new weights into the model. Raises `ValueError`, and changes nothing, if they do not fit."""
        copy_weights(self._forward.model, weights)

    def clear(self, slot: int, start: int) -> None:
        """Remove what is not finite from a slot, whose sequence is `start` tokens long now."""
        self._forward.cache.clear(slot, start)
        self._lanes.position[slot] = start

    def reset(self, *, clear: bool) -> None:
        """All slots are empty; `clear` where numbers that are not finite may be about."""
        self._lanes.position.zero_()
        if clear:
            self._forward.cache.zero()
