"""The token paths of one session while they grow, and the rollout that they become.

Nothing is rewritten and nothing dropped: a request continues the thread whose tokens it begins with, all of them;
otherwise it splits off after the longest prefix that it has in common with any thread, and the thread that it leaves
stays as it is.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from ramet.rollout.tree import segment_halves
from ramet.types import Origin, Segment, SegmentKind, ThreadStart

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder


@dataclass(slots=True, eq=False)
class SessionThread:
    """One token path. `path` has the tokens of all turns that ended in it, and of its request in flight."""

    number: int
    parent: SessionThread | None
    n_shared: int  # tokens of the parent's path that it begins with
    path: array[int]
    busy: bool = False  # a turn is being sampled


@dataclass(slots=True, eq=False)
class SessionTurn:
    """One request and what was sampled for it; `number` counts all of the session, in the order of acceptance."""

    number: int
    thread: SessionThread
    inserted: array[int]  # what the request added to the thread
    n_prompt: int  # tokens in front of the sampled ones
    sampled: tuple[Segment, ...] = ()


@dataclass(slots=True, eq=False)
class SessionThreads:
    """All threads and turns of a session."""

    encoder: Encoder
    threads: list[SessionThread] = field(default_factory=list)
    turns: list[SessionTurn] = field(default_factory=list)

    @property
    def n_tokens(self) -> int:
        """Tokens of all turns, each once; the first request's, the prompt, left out."""
        return sum(len(turn.inserted) for turn in self.turns[1:]) + sum(
            len(segment) for turn in self.turns for segment in turn.sampled
        )

    def begin(self, prompt: array[int]) -> SessionTurn:
        """Accept a request whose complete prompt has these tokens."""
        thread, common = self._longest(prompt)
        if thread is None or thread.busy or common < len(thread.path):
            thread = SessionThread(len(self.threads), thread, common, prompt[:common])
            self.threads.append(thread)
        turn = SessionTurn(len(self.turns), thread, prompt[common:], len(prompt))
        thread.path.extend(turn.inserted)
        thread.busy = True
        self.turns.append(turn)
        return turn

    def end(self, turn: SessionTurn, sampled: Sequence[Segment]) -> None:
        """Add what was sampled in the turn; nothing if the request failed."""
        turn.sampled = tuple(replace(segment, turn=turn.number, thread=turn.thread.number) for segment in sampled)
        for segment in turn.sampled:
            turn.thread.path.extend(segment.token_ids)
        turn.thread.busy = False

    def _longest(self, prompt: array[int]) -> tuple[SessionThread | None, int]:
        """The first thread with the longest common prefix, and its length in tokens."""
        best: SessionThread | None = None
        longest = 0
        for thread in self.threads:
            common = common_prefix(thread.path, prompt)
            if common > longest or (common == longest and best is not None and best.busy and not thread.busy):
                best, longest = thread, common
        return best, longest

    def segments(self) -> tuple[tuple[Segment, ...], tuple[ThreadStart, ...]]:
        """The segments of the rollout in order of turns, and how threads 1, 2, … began."""
        own: dict[int, list[Segment]] = {thread.number: [] for thread in self.threads}
        order: list[list[Segment]] = []
        borders = self._borders()
        for turn in self.turns:
            pieces = list(self._cut(turn, borders[turn.thread.number], sum(map(len, own[turn.thread.number]))))
            own[turn.thread.number] += pieces
            order.append(pieces)
        starts = tuple(ThreadStart(*self._start(thread, own)) for thread in self.threads[1:])
        return tuple(segment for pieces in order for segment in pieces), starts

    def _borders(self) -> list[set[int]]:
        """Of each thread, the positions on its own tokens at which later threads left it, or one that it came from."""
        borders: list[set[int]] = [set() for _ in self.threads]
        for thread in self.threads[1:]:
            owner, position = self._owner(thread)
            if owner is not None:
                borders[owner.number].add(position - owner.n_shared)
        return borders

    def _owner(self, thread: SessionThread) -> tuple[SessionThread | None, int]:
        """The thread whose own tokens the last of the shared ones are, and how many of its path are shared."""
        owner, n = thread.parent, thread.n_shared
        while owner is not None and n <= owner.n_shared and owner.parent is not None:
            owner = owner.parent
        return (owner, n) if n else (None, 0)

    def _cut(self, turn: SessionTurn, borders: set[int], done: int) -> Iterator[Segment]:
        """The turn's segments, ended where another thread begins; `done` tokens of the thread are before them."""
        segments = list(turn.sampled)
        if turn.inserted:
            kind = SegmentKind.MESSAGES if turn.number else SegmentKind.PROMPT
            inserted = Segment(
                origin=Origin.INSERTED,
                kind=kind,
                turn=turn.number,
                thread=turn.thread.number,
                text=self.encoder.decode(turn.inserted),
                token_ids=turn.inserted,
            )
            segments.insert(0, inserted)
        for segment in segments:
            inside = sorted(border - done for border in borders if done < border < done + len(segment))
            done += len(segment)
            for start, end in zip([0, *inside], inside, strict=False):
                first, segment = segment_halves(segment, end - start, self.encoder)
                yield first
            yield segment

    def _start(self, thread: SessionThread, own: dict[int, list[Segment]]) -> tuple[int, int]:
        owner, position = self._owner(thread)
        if owner is None:
            return 0, 0
        context = self._start(owner, own)[1] if owner.number else 0
        lengths = accumulate(map(len, own[owner.number]))
        return owner.number, context + 1 + next(
            i for i, length in enumerate(lengths) if length == position - owner.n_shared
        )


def common_prefix(first: array[int], other: array[int]) -> int:
    """How many tokens two paths begin with in common."""
    n = min(len(first), len(other))
    if first[:n] == other[:n]:
        return n
    low, high = 0, n - 1  # the first `low` are equal, the first `high` + 1 are not
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
