"""Continuous batching: the choice of the next computation. Synchronous and free of threads.

A round admits waiting requests to slots, computes at most `prefill_tokens` of prompts, and decodes one token for every
sequence whose prompt is complete; both in one pass, unless it is deterministic. Prefill stops one token short of the
prompt's end: the last one is decoded, so a fork of a known prefix copies its rows and computes exactly one token. New
weights put running sequences back at the front of the queue, and what they have sampled counts as their prompt from
then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from ramet.engines.counters import Counters
from ramet.engines.protocol import Completion, FinishReason, FirstReport, Request
from ramet.engines.sequence import RunningSequence, StopStrings
from ramet.engines.torch.model_runner import BatchPart, ModelRunner, RunnerBatch
from ramet.engines.torch.slots import CacheSlot, SlotTable
from ramet.errors import InfraError
from ramet.models.encoder import Encoder


@dataclass(frozen=True, slots=True)
class SequenceFirst:
    """The first report of a request."""

    sequence: RunningSequence
    report: FirstReport


@dataclass(frozen=True, slots=True)
class SequenceDone:
    """A request that ended with its tokens."""

    sequence: RunningSequence
    completion: Completion


@dataclass(frozen=True, slots=True)
class SequenceFailed:
    """A request that ended without tokens."""

    sequence: RunningSequence
    error: Exception


Event: TypeAlias = SequenceFirst | SequenceDone | SequenceFailed


class TorchBatcher:
    """Sequences in, events out. Used by one thread."""

    def __init__(
        self,
        runner: ModelRunner,
        encoder: Encoder,
        counters: Counters,
        *,
        slots: int,
        max_tokens: int,
        prefill_tokens: int,
    ) -> None:
        self.version = 0  # of the weights
        self.epoch = 0  # weight updates so far
        self._runner = runner
        self._encoder = encoder
        self._counters = counters
        self._prefill_tokens = prefill_tokens
        self._table = SlotTable(slots, max_tokens, deterministic=runner.deterministic)
        self._waiting: list[RunningSequence] = []
        self._prefilling: list[RunningSequence] = []
        self._decoding: dict[int, RunningSequence] = {}
        self._batch: RunnerBatch | None = None
        self._stops: dict[tuple[str, ...], StopStrings] = {}
        self._dirty = False  # numbers that are not finite were seen; the cache may have them after a sequence's end

    @property
    def idle(self) -> bool:
        """Whether no request waits and none runs."""
        return not (self._waiting or self.running)

    @property
    def running(self) -> bool:
        return bool(self._prefilling or self._decoding)

    @property
    def drained(self) -> bool:
        """Whether no request of this epoch is left."""
        return not self.running and all(s.epoch > self.epoch for s in self._waiting)

    def submit(self, request: Request, epoch: int) -> RunningSequence:
        """Queue a request that was checked before; it waits until its epoch has begun."""
        stop = request.sampling.stop
        if stop and stop not in self._stops:
            self._stops[stop] = StopStrings(stop, self._encoder)
        sequence = RunningSequence(request, self._stops.get(stop), request.cache_key, epoch)
        self._waiting.append(sequence)
        return sequence

    def step(self) -> list[Event]:
        """One round. Requests that share a prompt which was computed in it join in the same round, or in the next one
        if others decoded meanwhile.
        """
        events = self._admit()
        if self._decoding and not self._runner.deterministic:
            return events + self._decode(self._next_parts(self._prefill_tokens))
        left = self._prefill_tokens
        while parts := self._next_parts(left):
            self._runner.prefill(parts)
            self._note_computed(parts)
            left -= _padded(parts)
            events += self._admit()
        return events + self._decode([])

    def abort(self, request_id: str) -> list[Event]:
        """End a request with its tokens so far; unknown ids pass."""
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

    def load(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        """Copy new weights into the model. Raises `ValueError`, and changes nothing, if they do not fit."""
        self._runner.load(weights)

    def next_epoch(self, version: int | None) -> None:
        """The weights are of this version from now on: forget every cache, and let what runs compute its own again.

        None: the weights of this epoch were refused, and the old ones stay with their caches.
        """
        self.epoch += 1
        if version is None:
            return
        cut = [*self._prefilling, *self._decoding.values()]
        for sequence in cut:
            self._cut(sequence)
        self._waiting = [*cut, *self._waiting]
        self.version = version
        self._table.drop()
        self._runner.reset(clear=self._dirty)
        self._dirty = False
        self._counters.add(updates_in_flight=int(bool(cut)))

    def _cut(self, sequence: RunningSequence) -> None:
        """Take a sequence out of its slot, with everything that only the slot knows of it."""
        self._runner.read(sequence)
        sequence.cut(self.version)
        sequence.lost = int(self._table.valid[sequence.slot])
        self._leave(sequence)
        sequence.slot = -1

    def _all(self) -> list[RunningSequence]:
        return [*self._waiting, *self._prefilling, *self._decoding.values()]

    def _admit(self) -> list[Event]:
        events: list[Event] = []
        waiting: list[RunningSequence] = []
        for sequence in self._waiting:
            if sequence.epoch > self.epoch:
                waiting.append(sequence)
                continue
            problem = self._lost_parent(sequence)
            if problem is not None:
                events.append(SequenceFailed(sequence, problem))
                continue
            target = self._table.find(sequence.context, sequence.key, sequence.request.fork_of)
            if target is None:
                waiting.append(sequence)
            else:
                self._start(sequence, target)
        self._waiting = waiting
        return events

    def _lost_parent(self, sequence: RunningSequence) -> ValueError | None:
        parent = sequence.request.fork_of if sequence.lost is None else ""  # a repeated sequence needs none
        if not (self._runner.deterministic and parent) or self._table.holds(parent) or self._table.holds(sequence.key):
            return None
        return ValueError(
            f"request {sequence.request.id!r} forks {parent!r}, whose cache is not held: with deterministic=true a "
            "parent must not be released before its forks have started"
        )

    def _start(self, sequence: RunningSequence, target: CacheSlot) -> None:
        is_fork = bool(sequence.request.fork_of) and not self._table.holds(sequence.key)
        self._table.occupy(target, sequence.context, sequence.key)
        sequence.slot = target.slot
        self._runner.start(sequence, target)
        self._count(sequence, target, is_fork)
        self._prefilling.append(sequence)
        self._join(sequence)

    def _count(self, sequence: RunningSequence, target: CacheSlot, is_fork: bool) -> None:
        if sequence.lost is not None:
            self._counters.add(recomputed_tokens=max(sequence.lost - target.cached, 0))
            return
        sequence.cached = target.cached
        self._counters.add(
            prompt_tokens=len(sequence.prompt),
            cached_tokens=target.cached,
            forks=int(is_fork),
            recomputed_prefix_tokens=target.recomputed if is_fork else 0,
        )

    def _join(self, sequence: RunningSequence) -> None:
        """Decode a sequence from now on, if all but the last token of its context is computed."""
        if self._table.valid[sequence.slot] == len(sequence.context) - 1:
            self._prefilling.remove(sequence)
            self._decoding[sequence.slot] = sequence
            self._batch = None

    def _next_parts(self, budget: int) -> list[BatchPart]:
        """Return parts of the first prompts of `_prefilling`, which together, padded, have at most so many tokens."""
        parts: list[BatchPart] = []
        for sequence in self._prefilling:
            start = int(self._table.valid[sequence.slot])
            part = BatchPart(sequence.slot, start, sequence.context[start:-1][: self._prefill_tokens])
            if _padded([*parts, part]) > budget or (parts and self._runner.deterministic):
                break
            parts.append(part)
        return parts

    def _note_computed(self, parts: Sequence[BatchPart]) -> None:
        for sequence, part in zip(self._prefilling[: len(parts)], parts, strict=True):
            self._table.valid[sequence.slot] = part.start + len(part.tokens)
            self._join(sequence)

    def _decode(self, parts: Sequence[BatchPart]) -> list[Event]:
        """`parts` of prompts are computed in the same pass."""
        if not self._decoding:
            return []
        batch = self._batch = self._batch or self._runner.batch(self._decoding)
        longest = max(int(self._table.valid[slot]) for slot in self._decoding)
        tokens = self._runner.decode(batch, longest, parts)
        beside = {part.slot for part in parts}
        self._note_computed(parts)
        events: list[Event] = []
        for slot, sequence, token in zip(batch.slots, batch.sequences, tokens, strict=True):
            if sequence is not None:
                events += self._take(sequence, token)
            elif token < 0 and slot in beside:  # it wrote at the end of the cache, and the prompt there stays
                self._dirty = True
            elif token < 0:  # it wrote after the end of the idle sequence in this slot, or at the end of the cache
                self._clean(slot)
        self._counters.add(decode_steps=1)
        return events

    def _take(self, sequence: RunningSequence, token: int) -> list[Event]:
        """A sequence got its next token."""
        self._table.append(sequence.slot, token)
        if token < 0:
            return self._fail(sequence, InfraError(f"request {sequence.request.id!r}: its logits are not finite"))
        ended = sequence.append(token)
        if ended is not None:
            return self._finish(sequence, *ended)
        if len(sequence.sampled) == sequence.request.first_tokens:
            return [self._first(sequence)]
        return []

    def _first(self, sequence: RunningSequence) -> SequenceFirst:
        sequence.reported = True
        self._runner.read(sequence)
        return SequenceFirst(sequence, sequence.first_report())

    def _finish(self, sequence: RunningSequence, reason: FinishReason, stop: str | None) -> list[Event]:
        events: list[Event] = [] if sequence.reported else [self._first(sequence)]
        self._runner.read(sequence)
        completion = sequence.completion(reason, stop, self.version)
        self._counters.add(sampled_tokens=len(sequence.sampled))
        self._leave(sequence)
        return [*events, SequenceDone(sequence, completion)]

    def _fail(self, sequence: RunningSequence, error: InfraError) -> list[Event]:
        self._leave(sequence)
        self._table.discard(sequence.slot)
        self._clean(sequence.slot)
        self._counters.add(failed_requests=1)
        return [SequenceFailed(sequence, error)]

    def _clean(self, slot: int) -> None:
        self._dirty = True
        valid = int(self._table.valid[slot]) if slot < len(self._table) else 0
        self._runner.clear(slot, valid)

    def _leave(self, sequence: RunningSequence) -> None:
        if sequence.slot < 0:
            self._waiting.remove(sequence)
            return
        if self._decoding.pop(sequence.slot, None) is None:
            self._prefilling.remove(sequence)
        self._batch = None
        self._table.vacate(sequence.slot)


def _padded(parts: Sequence[BatchPart]) -> int:
    """Tokens that these parts take, each as long as the longest."""
    return len(parts) * max(len(part.tokens) for part in parts)
