"""Cache slots and their tokens: keys, shared prefixes, and which slot may be taken.

A slot is free (no request's), idle (kept for its key's next request) or busy. Its tokens stay known until it is taken
again, so any slot can give its prefix to another request.

Deterministic tables share more carefully, because keys and values have the same bits only if they were computed by the
same sequence of shapes. A request then starts from its own key's slot, from its parent's, or from a slot whose first
`origin` tokens were computed as exactly this prompt. Idle slots are never taken from their key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ramet.engines.sequence import Tokens

Counts: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]  # [slots]
MIN_SHARED = 16  # tokens: waiting for a prefix that is being computed must save at least so many


@dataclass(frozen=True, slots=True)
class CacheSlot:
    """Place of a request: its slot, and the first `cached` tokens copied from `donor` (the slot itself: kept)."""

    slot: int
    donor: int
    cached: int
    recomputed: int  # of a fork: tokens that its parent has, or once had, and that are computed again


class SlotTable:
    """Host-side bookkeeping without tensors."""

    def __init__(self, slots: int, length: int, *, deterministic: bool) -> None:
        self.deterministic = deterministic
        self.tokens = np.zeros((slots, length), dtype=np.int32)
        self.known = np.zeros(slots, dtype=np.int64)  # tokens written in `tokens`
        self.valid = np.zeros(slots, dtype=np.int64)  # tokens whose keys and values are computed
        self.origin = np.zeros(slots, dtype=np.int64)  # tokens computed as one prompt from nothing
        self.busy = np.zeros(slots, dtype=bool)
        self.keys: list[str] = [""] * slots
        self._by_key: dict[str, int] = {}
        self._keyed = np.zeros(slots, dtype=bool)
        self._used = np.zeros(slots, dtype=np.int64)
        self._clock = 0

    def __len__(self) -> int:
        return len(self.keys)

    def holds(self, key: str) -> bool:
        return key in self._by_key

    def find(self, prompt: Tokens, key: str, fork_of: str) -> CacheSlot | None:
        """The best slot for a prompt, or None if it should wait: for a slot, or for a prefix that is being computed."""
        usable = len(prompt) - 1  # the last token is always computed: its logits are wanted
        own_slot = self._by_key.get(key) if key else None
        if own_slot is not None and self.busy[own_slot]:
            own_slot = None  # another request of this key is running: this one gets another slot
        parent = self._by_key.get(fork_of) if fork_of else None
        if own_slot is None and not self._takeable().any():
            return None
        shared = self._shared(prompt)
        coming = np.minimum(shared, usable)
        ready = np.minimum(coming, self.valid)
        if self.deterministic:
            source = own_slot if own_slot is not None else parent
            ready, coming = self._same_bits(ready, coming, usable, source)
        slot = own_slot if own_slot is not None else self._take(ready)
        donor = slot if ready[slot] == ready.max() else int(ready.argmax())
        cached = int(ready[donor])
        if own_slot is None and int(coming[self.busy].max(initial=0)) - cached >= MIN_SHARED:
            return None
        n_known = len(prompt) if parent is None else int(min(shared[parent], self.valid[parent]))
        return CacheSlot(slot, donor, cached, max(n_known - cached, 0))

    def occupy(self, target: CacheSlot, prompt: Tokens, key: str) -> None:
        """Give a slot to a request. The caller copies the cache."""
        slot = target.slot
        if self.keys[slot] != key:
            self._forget(slot)
        if key and key not in self._by_key:
            self.keys[slot], self._keyed[slot], self._by_key[key] = key, True, slot
        origin = int(self.origin[target.donor])
        self.origin[slot] = origin if target.cached >= origin > 0 else (len(prompt) - 1 if target.cached == 0 else 0)
        self.tokens[slot, : len(prompt)] = prompt
        self.known[slot], self.valid[slot] = len(prompt), target.cached
        self.busy[slot] = True

    def append(self, slot: int, token: int) -> None:
        """The slot's last known token was fed, and gave this one (negative: none)."""
        self.valid[slot] += 1
        if token >= 0:
            self.tokens[slot, self.known[slot]] = token
            self.known[slot] += 1

    def vacate(self, slot: int) -> None:
        """A request ended. A slot with a key stays idle for it, another one is free."""
        self.busy[slot] = False
        self.known[slot] = self.valid[slot]
        self._clock += 1
        self._used[slot] = self._clock

    def release(self, key: str) -> None:
        """A key's sequence is over; its tokens may still serve as a prefix until the slot is taken."""
        slot = self._by_key.get(key)
        if slot is not None:
            self._forget(slot)

    def drop(self) -> None:
        """Empty all slots, of which none may be busy; each stays its key's."""
        self.known[:] = self.valid[:] = self.origin[:] = 0

    def discard(self, slot: int) -> None:
        """Forget a slot's tokens."""
        self._forget(slot)
        self.known[slot] = self.valid[slot] = self.origin[slot] = 0

    def _shared(self, prompt: Tokens) -> Counts:
        """Leading tokens that each slot has in common with the prompt."""
        differs = self.tokens[:, : len(prompt)] != prompt
        first = np.where(differs.any(axis=1), differs.argmax(axis=1), len(prompt))
        shared: Counts = np.minimum(first, self.known)
        return shared

    def _same_bits(self, ready: Counts, coming: Counts, usable: int, source: int | None) -> tuple[Counts, Counts]:
        if source is not None:
            only = np.arange(len(self)) == source
            return np.where(only, ready, 0), np.where(only, coming, 0)
        same = (self.origin == usable) & (coming == usable)
        return np.where(same & (ready == usable), usable, 0), np.where(same, usable, 0)

    def _takeable(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Free slots, and idle ones where taking them away is allowed."""
        return ~self.busy & ~self._keyed if self.deterministic else ~self.busy

    def _take(self, ready: Counts) -> int:
        """A free slot, with as much of the prompt as possible; otherwise the one that was idle for longest."""
        free = np.flatnonzero(~self.busy & ~self._keyed)
        if len(free):
            return int(free[ready[free].argmax()])
        idle = np.flatnonzero(self._takeable())
        return int(idle[self._used[idle].argmin()])

    def _forget(self, slot: int) -> None:
        if self.keys[slot]:
            del self._by_key[self.keys[slot]]
            self.keys[slot], self._keyed[slot] = "", False
