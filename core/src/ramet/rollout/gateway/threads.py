"""The token paths of one session while they grow, and the rollout that they become.

Nothing is rewritten and nothing dropped: a request continues the thread whose tokens it begins with, all of them;
otherwise it splits off after the longest prefix that it has in common with any thread, and the thread that it leaves
stays as it is.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ramet.rollout.tree import segment_halves
from ramet.types import Origin, Segment, SegmentKind, ThreadStart

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder


@dataclass(slots=True, eq=False)
class SessionThread:
    """One token path, of all its turns. Its first `n_shared` tokens are `parent`'s, which has them as its own."""

    number: int
    parent: SessionThread | None
    n_shared: int
    path: array[int]
    busy: bool = False  # a turn is being sampled


@dataclass(slots=True, eq=False)
class SessionTurn:
    """One request and what was sampled for it. `number` counts all of the session, in the order of acceptance."""

    number: int
    thread: SessionThread
    n_prompt: int  # tokens in front of the sampled ones
    asked: Mapping[str, Any]  # the sampling that the client asked for
    segments: list[Segment] = field(default_factory=list)  # what the request added to the thread, then what was sampled

    @property
    def end(self) -> int:
        """Tokens of the thread's path up to the end of this turn."""
        return self.n_prompt + sum(len(segment) for segment in self.segments if segment.is_sampled)


@dataclass(slots=True, eq=False)
class SessionThreads:
    """All threads and turns of a session."""

    encoder: Encoder
    threads: list[SessionThread] = field(default_factory=list)
    turns: list[SessionTurn] = field(default_factory=list)

    @property
    def n_tokens(self) -> int:
        """Tokens of all turns, each once, without the prompt."""
        everything = [segment for turn in self.turns for segment in turn.segments]
        return sum(len(segment) for segment in everything if segment.kind is not SegmentKind.PROMPT)

    def n_inserted(self, prompt: array[int]) -> int:
        """Tokens that a request with this prompt would add to its thread; none of the first, the prompt, is counted."""
        return len(prompt) - self._longest(prompt)[1] if self.turns else 0

    def begin(self, prompt: array[int], asked: Mapping[str, Any]) -> SessionTurn:
        """Accept a request whose complete prompt has these tokens."""
        thread, common = self._longest(prompt)
        if thread is None or thread.busy or common < len(thread.path):
            thread = self._split_off(thread, common, prompt)
        turn = SessionTurn(len(self.turns), thread, len(prompt), asked)
        if inserted := prompt[common:]:
            kind = SegmentKind.MESSAGES if self.turns else SegmentKind.PROMPT
            text = self.encoder.decode(inserted)
            turn.segments.append(_segment(turn, kind=kind, text=text, token_ids=inserted))
            thread.path.extend(inserted)
        thread.busy = True
        self.turns.append(turn)
        return turn

    def end(self, turn: SessionTurn, sampled: Sequence[Segment]) -> None:
        """Add what was sampled in the turn; nothing if the request failed."""
        for segment in sampled:
            turn.segments.append(replace(segment, turn=turn.number, thread=turn.thread.number))
            turn.thread.path.extend(segment.token_ids)
        turn.thread.busy = False

    def segments(self) -> tuple[tuple[Segment, ...], tuple[ThreadStart, ...]]:
        """The segments of the rollout in order of turns, and how threads 1, 2, … began."""
        starts = tuple(self._start(thread) for thread in self.threads[1:])
        return tuple(segment for turn in self.turns for segment in turn.segments), starts

    def _longest(self, prompt: array[int]) -> tuple[SessionThread | None, int]:
        """The thread that the prompt continues: the longest of those that it begins with and that are not busy.

        Without one, the thread with the longest common prefix. Also returns how many tokens they have in common.
        """
        common = [(common_prefix(thread.path, prompt), thread) for thread in self.threads]
        continued = [(n, thread) for n, thread in common if n == len(thread.path) and not thread.busy]
        longest, thread = max(continued or common, key=lambda pair: pair[0], default=(0, None))
        return (thread, longest) if longest else (None, 0)

    def _split_off(self, parent: SessionThread | None, common: int, prompt: array[int]) -> SessionThread:
        """A new thread that begins with the first `common` tokens of `parent`'s path, where a segment then ends."""
        while parent is not None and parent.parent is not None and common <= parent.n_shared:
            parent = parent.parent  # these tokens are its own
        thread = SessionThread(len(self.threads), parent, common, prompt[:common])
        self.threads.append(thread)
        done = 0 if parent is None else parent.n_shared
        for turn in self._turns_of(parent):
            for number, segment in enumerate(turn.segments):
                if done < common < done + len(segment):
                    turn.segments[number : number + 1] = segment_halves(segment, common - done, self.encoder)
                    return thread
                done += len(segment)
        return thread

    def _turns_of(self, thread: SessionThread | None) -> Iterator[SessionTurn]:
        return (turn for turn in self.turns if turn.thread is thread)

    def _start(self, thread: SessionThread) -> ThreadStart:
        parent = thread.parent
        if parent is None:
            return ThreadStart(0, 0)
        n, tokens = self._start(parent).n_segments, parent.n_shared
        for turn in self._turns_of(parent):
            for segment in turn.segments:
                if tokens < thread.n_shared:
                    n, tokens = n + 1, tokens + len(segment)
        return ThreadStart(parent.number, n)


def _segment(turn: SessionTurn, *, kind: SegmentKind, text: str, token_ids: array[int]) -> Segment:
    return Segment(
        origin=Origin.INSERTED,
        kind=kind,
        turn=turn.number,
        thread=turn.thread.number,
        text=text,
        token_ids=token_ids,
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
