"""A row: one rollout of a lockstep batch, known by its place in the batch, and what training sees of it in the end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from ramet import Fault, Segment
from ramet_release.internals import LiveRollout, path_text, segment_halves

if TYPE_CHECKING:
    from ramet_release.internals import Encoder

# Segments that were cut, with their first part, by identity and length of that. Kept, so that no identity is reused.
Cuts: TypeAlias = dict[tuple[int, int], tuple[Segment, Segment]]


@dataclass(slots=True, eq=False)
class LockstepRow:
    """`index` is its place in the batch, in the order in which rows were created; the entropy table knows rows by it.

    `entropy` belongs to the segment that it sampled last. An active row takes part in the next round.
    """

    index: int
    prompt: int  # the number of its prompt in the batch
    live: LiveRollout
    n_calls: int = 0
    entropy: float = 0.0

    @property
    def is_active(self) -> bool:
        return self.live.stop is None and self.live.fault is None

    def copied(self, index: int) -> LockstepRow:
        """Return a row that continues from where this one is now, with its tokens, masks and counted calls."""
        return LockstepRow(index, self.prompt, self.live.fork(self.live.turn), self.n_calls, self.entropy)


def padding_copy(last: LockstepRow, index: int, root: int, fault: Fault) -> LockstepRow:
    """Filler of a short group: a copy of its last row with a new id, as a root.

    The released loop never ends with a short group. Here the step's deadline may end it, so a copy is masked.
    """
    live, path = last.live.until(last.live.turn), (root,)
    live.key, live.path, live.fault = replace(live.key, path=path_text(path)), path, fault
    live.segments, live.turns[-1].calls = list(last.live.segments), last.live.turns[-1].calls
    live.add_stat("padding", 1)
    return LockstepRow(index, last.prompt, live, last.n_calls, last.entropy)


def cut_response(live: LiveRollout, tokens: int, cuts: Cuts, encoder: Encoder) -> None:
    """Cut a response that is longer than this. Rows that share a segment still share its rest."""
    kept = [live.segments[0]]
    for segment in live.segments[1:]:
        if tokens <= 0:
            break
        if len(segment) > tokens:
            _, segment = cuts.setdefault((id(segment), tokens), (segment, segment_halves(segment, tokens, encoder)[0]))
        kept.append(segment)
        tokens -= len(segment)
    live.segments, live.n_shared = kept, min(live.n_shared, len(kept))


def n_attended(response: Sequence[Segment], ends: Collection[int]) -> int:
    """How many tokens of a response are attended to: up to and with the first end of sequence, otherwise all.

    An end of sequence in a tool's result hides what follows it, which is neither rewarded nor trained.
    """
    ids = list(chain.from_iterable(segment.token_ids for segment in response))
    return next((n for n, token in enumerate(ids, start=1) if token in ends), len(ids))
