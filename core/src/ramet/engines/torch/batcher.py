"""Continuous batching: what is computed next. Synchronous and free of threads.

A round admits waiting requests to slots, computes at most `prefill_tokens` of prompts, then decodes one token for every
sequence whose prompt is complete. Prefill stops one token short of the prompt's end: the last one is decoded, so a fork
of a known prefix copies its rows and computes exactly one token.

Deterministic batching always decodes all slots over the whole cache length, and prefills one request at a time: a
sequence's numbers then depend on its own history alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from ramet.engines.protocol import Completion, FinishReason, FirstReport, Request
from ramet.engines.torch.counters import Counters
from ramet.engines.torch.forward import Forward
from ramet.engines.torch.lanes import Lanes
from ramet.engines.torch.sampler import sample
from ramet.engines.torch.sequence import Done, Event, Failed, First, Sequence
from ramet.engines.torch.slots import Place, SlotTable
from ramet.engines.torch.stops import StopStrings
from ramet.errors import InfraError
from ramet.models.encoder import Encoder

DENSE = 0.5  # share of active slots above which a range of slots is decoded with its gaps instead of gathered


@dataclass(frozen=True, slots=True)
class _Batch:
    """The rows of a decode step; it stays the same until a sequence joins or leaves."""

    sequences: list[Sequence | None]  # None: the row only pads
    rows: slice | Tensor
    active: Tensor  # [R] bool
    any_greedy: bool
    narrow: Tensor | None


class Batcher:
    """Sequences in, events out. Owns slots, lanes and cache; used by one thread."""

    def __init__(
        self,
        forward: Forward,
        encoder: Encoder,
        counters: Counters,
        *,
        slots: int,
        prefill_tokens: int,
        deterministic: bool,
    ) -> None:
        self.version = 0  # of the weights
        self.epoch = 0  # weight updates so far
        self._forward = forward
        self._encoder = encoder
        self._counters = counters
        self._prefill_tokens = prefill_tokens
        self._deterministic = deterministic
        self._table = SlotTable(slots, forward.max_tokens, deterministic=deterministic)
        self._lanes = Lanes(forward.slots, forward.cache.length, forward.device)
        self._waiting: list[Sequence] = []
        self._prefilling: list[Sequence] = []
        self._decoding: dict[int, Sequence] = {}
        self._batch: _Batch | None = None
        self._stops: dict[tuple[str, ...], StopStrings] = {}
        self._dirty = False  # the cache may hold numbers that are not finite behind a sequence's end

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return not (self._waiting or self.running)

    @property
    def running(self) -> bool:
        return bool(self._prefilling or self._decoding)

    @property
    def drained(self) -> bool:
        """Nothing of this epoch is left."""
        return not self.running and all(s.epoch > self.epoch for s in self._waiting)

    def submit(self, request: Request, epoch: int) -> Sequence:
        """Queue a request that was checked before; it waits until its epoch has begun."""
        stop = request.sampling.stop
        if stop and stop not in self._stops:
            self._stops[stop] = StopStrings(stop, self._encoder)
        sequence = Sequence(request, self._stops.get(stop), request.cache_key, epoch)
        self._waiting.append(sequence)
        return sequence

    def step(self) -> list[Event]:
        """One round."""
        events = self._admit()
        self._prefill()
        events += self._decode()
        return events

    def abort(self, request_id: str) -> list[Event]:
        """End a request with what it has; unknown ids pass."""
        for sequence in self._all():
            if sequence.request.id == request_id:
                return self._finish(sequence, FinishReason.ABORT, None)
        return []

    def release(self, keys: Iterable[str]) -> None:
        """Sequences of these keys are over, also those that have not started."""
        gone = set(keys)
        for sequence in self._all():
            if sequence.key in gone:
                sequence.key = ""
        for key in gone:
            self._table.release(key)

    def next_epoch(self, version: int) -> None:
        """The weights are of this version from now on: forget every cache. Nothing may be running."""
        self.epoch += 1
        self.version = version
        for slot in range(len(self._table)):
            self._table.discard(slot)
            if self._dirty:
                self._forward.cache.clear(slot)
        self._lanes.position.zero_()
        self._dirty = False

    def _all(self) -> list[Sequence]:
        return [*self._waiting, *self._prefilling, *self._decoding.values()]

    def _admit(self) -> list[Event]:
        events: list[Event] = []
        waiting: list[Sequence] = []
        for sequence in self._waiting:
            if sequence.epoch > self.epoch:
                waiting.append(sequence)
                continue
            problem = self._lost_parent(sequence)
            if problem is not None:
                events.append(Failed(sequence, problem))
                continue
            place = self._table.find(sequence.prompt, sequence.key, sequence.request.fork_of)
            if place is None:
                waiting.append(sequence)
            else:
                self._start(sequence, place)
        self._waiting = waiting
        return events

    def _lost_parent(self, sequence: Sequence) -> ValueError | None:
        parent = sequence.request.fork_of
        if not (self._deterministic and parent) or self._table.holds(parent) or self._table.holds(sequence.key):
            return None
        return ValueError(
            f"request {sequence.request.id!r} forks {parent!r}, whose cache is not held: with deterministic=true a "
            "parent must not be released before its forks have started"
        )

    def _start(self, sequence: Sequence, place: Place) -> None:
        request, prompt = sequence.request, sequence.prompt
        is_fork = bool(request.fork_of) and not self._table.holds(sequence.key)
        self._table.occupy(place, prompt, sequence.key)
        if place.donor != place.slot:
            self._forward.cache.copy(place.donor, place.slot, 0, place.cached)
        sequence.slot, sequence.cached = place.slot, place.cached
        self._lanes.position[place.slot] = place.cached
        self._lanes.start(place.slot, request.sampling, request.seed, len(prompt), int(prompt[-1]))
        self._counters.add(
            prompt_tokens=len(prompt),
            cached_tokens=place.cached,
            forks=int(is_fork),
            recomputed_prefix_tokens=place.recomputed if is_fork else 0,
        )
        if place.cached == len(prompt) - 1:
            self._decode_from_now(sequence)
        else:
            self._prefilling.append(sequence)

    def _decode_from_now(self, sequence: Sequence) -> None:
        self._decoding[sequence.slot] = sequence
        self._batch = None

    @torch.inference_mode()
    def _prefill(self) -> None:
        chosen, counts = self._choose_prefills()
        if not chosen:
            return
        device, width = self._forward.device, max(counts)
        tokens = torch.zeros(len(chosen), width, dtype=torch.int64)
        starts = [int(self._table.valid[s.slot]) for s in chosen]
        for row, (sequence, start, count) in enumerate(zip(chosen, starts, counts, strict=True)):
            tokens[row, :count] = torch.from_numpy(sequence.prompt[start : start + count].copy())
        slots = torch.tensor([s.slot for s in chosen], device=device)
        lengths = torch.tensor([starts, counts], device=device)
        longest = max(start + count for start, count in zip(starts, counts, strict=True))
        self._forward.prefill(tokens.to(device), lengths[0], lengths[1], slots, self._forward.length(longest))
        self._lanes.position[slots] = lengths.sum(dim=0)
        for sequence, start, count in zip(chosen, starts, counts, strict=True):
            self._table.valid[sequence.slot] = start + count
            if start + count == len(sequence.prompt) - 1:
                self._prefilling.remove(sequence)
                self._decode_from_now(sequence)

    def _choose_prefills(self) -> tuple[list[Sequence], list[int]]:
        """The oldest sequences whose padded rows fit into the budget; a long one gets a part of its prompt."""
        chosen: list[Sequence] = []
        counts: list[int] = []
        for sequence in self._prefilling:
            left = len(sequence.prompt) - 1 - int(self._table.valid[sequence.slot])
            count = min(left, self._prefill_tokens)
            if chosen and (self._deterministic or (len(chosen) + 1) * max(*counts, count) > self._prefill_tokens):
                break
            chosen.append(sequence)
            counts.append(count)
        return chosen, counts

    @torch.inference_mode()
    def _decode(self) -> list[Event]:
        if not self._decoding:
            return []
        batch = self._batch = self._batch or self._make_batch()
        lanes, forward, rows = self._lanes, self._forward, batch.rows
        position = lanes.position[rows]
        length = forward.cache.length
        if not self._deterministic:
            length = forward.length(max(int(self._table.valid[slot]) for slot in self._decoding) + 1)
        logits = forward.decode(lanes.token[rows], position, lanes.slot[rows], rows, length)
        draw = lanes.draw(rows, position, any_greedy=batch.any_greedy, narrow=batch.narrow)
        tokens, logprobs, entropies = sample(logits, draw)
        lanes.advance(rows, batch.active, tokens, logprobs, entropies)
        self._counters.add(decode_steps=1, sampled_tokens=len(self._decoding))
        return self._take(batch, tokens.tolist())

    def _make_batch(self) -> _Batch:
        slots = sorted(self._decoding)
        end = self._forward.slots if self._deterministic else slots[-1] + 1
        rows: slice | Tensor
        if self._deterministic or len(slots) >= DENSE * end:
            rows, chosen = slice(0, end), list(range(end))
        else:
            rows, chosen = torch.tensor(slots, device=self._forward.device), slots
        sequences = [self._decoding.get(slot) for slot in chosen]
        samplings = [s.request.sampling if s is not None else None for s in sequences]
        narrow = [i for i, one in enumerate(samplings) if one is not None and (one.top_p < 1 or one.top_k > 0)]
        return _Batch(
            sequences=sequences,
            rows=rows,
            active=torch.tensor([s is not None for s in sequences], device=self._forward.device),
            any_greedy=any(one is not None and one.temperature == 0 for one in samplings),
            narrow=torch.tensor(narrow, device=self._forward.device) if narrow else None,
        )

    def _take(self, batch: _Batch, tokens: Seq[int]) -> list[Event]:
        events: list[Event] = []
        table = self._table
        for sequence, token in zip(batch.sequences, tokens, strict=True):
            if sequence is None:
                continue
            slot = sequence.slot
            table.valid[slot] += 1
            if token < 0:
                events += self._fail(sequence, InfraError(f"request {sequence.request.id!r}: logits are not finite"))
                continue
            ended = sequence.append(token)
            if ended is not None:
                events += self._finish(sequence, *ended)
                continue
            table.tokens[slot, table.known[slot]] = token
            table.known[slot] += 1
            if len(sequence.sampled) == sequence.request.first_tokens:
                events.append(self._first(sequence))
        return events

    def _first(self, sequence: Sequence) -> First:
        sequence.reported = True
        count = min(sequence.request.first_tokens, len(sequence.sampled))
        entropies = self._lanes.entropies(sequence.slot, len(sequence.prompt), count)
        return First(sequence, FirstReport(request=sequence.request.id, entropies=tuple(entropies)))

    def _finish(self, sequence: Sequence, reason: FinishReason, stop: str | None) -> list[Event]:
        events: list[Event] = [] if sequence.reported else [self._first(sequence)]
        count, prompt = len(sequence.sampled), len(sequence.prompt)
        completion = Completion(
            token_ids=array("i", sequence.sampled),
            logprobs=array("f", self._lanes.logprobs(sequence.slot, prompt, count)),
            entropies=array("f", self._lanes.entropies(sequence.slot, prompt, count)),
            finish=reason,
            stop=stop,
            policy_version=self.version,
            prompt_tokens=prompt,
            cached_tokens=sequence.cached,
        )
        self._leave(sequence)
        return [*events, Done(sequence, completion)]

    def _fail(self, sequence: Sequence, error: Exception) -> list[Event]:
        slot = sequence.slot
        self._leave(sequence)
        if slot >= 0:
            self._table.discard(slot)
            self._forward.cache.clear(slot)
            self._lanes.position[slot] = 0
            self._dirty = True
        self._counters.add(failed_requests=1)
        return [Failed(sequence, error)]

    def _leave(self, sequence: Sequence) -> None:
        if sequence.slot < 0:
            self._waiting.remove(sequence)
            return
        if self._decoding.pop(sequence.slot, None) is None:
            self._prefilling.remove(sequence)
        self._batch = None
        self._table.vacate(sequence.slot)
