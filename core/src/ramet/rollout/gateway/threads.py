"""The token paths of one session while they grow, and the rollout that they become.

Nothing is rewritten and nothing dropped: a request continues the thread whose tokens it begins with, all of them;
otherwise it splits off after the longest prefix that it has in common with any thread, and the thread that it leaves
stays as it is.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ramet.rollout.gateway.messages import Digest, TurnReply
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
    cache_of: str = ""  # of a fork's thread: where the engine keeps its parent's
    busy: bool = False  # a turn is being sampled


@dataclass(slots=True, eq=False)
class SessionTurn:
    """One request and what was sampled for it. `number` counts all of the session, in the order of acceptance.

    Forks of a session have the very turns that they share, and of the turn in which they begin a copy.
    """

    number: int
    thread: int
    n_prompt: int  # tokens in front of the sampled ones
    request: Digest  # equal in requests that ask for the same
    asked: Mapping[str, Any]  # the sampling that the client asked for
    segments: list[Segment] = field(default_factory=list)  # what the request added to the thread, then what was sampled
    n_given: int = 0  # sampled tokens at its beginning that are another rollout's (a fork in the middle of a turn)
    n_reserved: int = 0  # tokens that may be sampled in it, while it runs
    reply: TurnReply | None = None  # None: it is being sampled, or failed
    is_over: bool = False

    @property
    def end(self) -> int:
        """Tokens of the thread's path up to the end of this turn."""
        return self.n_prompt + self.n_sampled

    @property
    def n_sampled(self) -> int:
        """Tokens that were sampled in this turn, also by the rollout that was forked."""
        return sum(len(segment) for segment in self.segments if segment.is_sampled)

    @property
    def given(self) -> list[Segment]:
        """The segments of the first `n_given` sampled tokens."""
        return list(first_tokens((s for s in self.segments if s.is_sampled), self.n_given))


@dataclass(slots=True, eq=False)
class GroupSessions:
    """The sessions of a group's rollouts, which may share turns and segments."""

    sessions: list[SessionThreads] = field(default_factory=list)
    n_cuts: int = 0  # segments that were cut in two


@dataclass(slots=True, eq=False)
class SessionThreads:
    """All threads and turns of a session."""

    encoder: Encoder
    group: GroupSessions = field(default_factory=GroupSessions)
    threads: list[SessionThread] = field(default_factory=list)
    turns: list[SessionTurn] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.group.sessions.append(self)

    @property
    def n_tokens(self) -> int:
        """Tokens of all turns, each once, without the prompt."""
        everything = [segment for turn in self.turns for segment in turn.segments]
        return sum(len(segment) for segment in everything if segment.kind is not SegmentKind.PROMPT)

    def n_inserted(self, prompt: array[int]) -> int:
        """Tokens that a request with this prompt would add to its thread; none of the first, the prompt, is counted."""
        return len(prompt) - self._longest(prompt)[1] if self.turns else 0

    def begin(self, prompt: array[int], request: Digest, asked: Mapping[str, Any]) -> SessionTurn:
        """Accept a request whose complete prompt has these tokens."""
        thread, common = self._longest(prompt)
        if thread is None or thread.busy or common < len(thread.path):
            thread = self._split_off(thread, common, prompt)
        turn = SessionTurn(len(self.turns), thread.number, len(prompt), request, asked)
        if inserted := prompt[common:]:
            kind = SegmentKind.MESSAGES if self.turns else SegmentKind.PROMPT
            turn.segments += [] if self.turns else self._shared_prompt(prompt)
            if not turn.segments:
                text = self.encoder.decode(inserted)
                turn.segments.append(_segment(turn, kind=kind, text=text, token_ids=inserted))
            thread.path.extend(inserted)
        thread.busy = True
        self.turns.append(turn)
        return turn

    def end(self, turn: SessionTurn, sampled: Sequence[Segment]) -> None:
        """Add what was sampled in the turn; nothing if the request failed."""
        thread = self.threads[turn.thread]
        for segment in sampled:
            turn.segments.append(replace(segment, turn=turn.number, thread=turn.thread))
            thread.path.extend(segment.token_ids)
        thread.busy, turn.is_over, turn.n_reserved = False, True, 0

    def fork(self, number: int, token: int, cache_key: Callable[[int], str]) -> SessionThreads:
        """The threads as they are in turn `number`, after `token` of its sampled tokens: there a segment ends.

        Earlier turns are the same objects. `cache_key`: of a thread's number, where the engine has it.
        """
        turn = self.turns[number]
        own = replace(
            turn, segments=[s for s in turn.segments if not s.is_sampled], reply=None, is_over=False, n_reserved=0
        )
        own.segments += first_tokens((s for s in turn.segments if s.is_sampled), token)
        own.n_given = token
        fork = SessionThreads(self.encoder, self.group, turns=[*self.turns[:number], own])
        ends = {turn.thread: turn.end for turn in fork.turns}
        for thread in self.threads[: len(ends)]:
            parent = None if thread.parent is None else fork.threads[thread.parent.number]
            path, key = thread.path[: ends[thread.number]], cache_key(thread.number)
            fork.threads.append(SessionThread(thread.number, parent, thread.n_shared, path, cache_of=key))
        return fork

    def split(self, number: int, token: int) -> None:
        """Let a segment end after the first `token` sampled tokens of a turn."""
        turn = self.turns[number]
        self._cut(turn, token + sum(len(s) for s in turn.segments if not s.is_sampled))

    def segments(self, n_turns: int | None = None) -> tuple[list[Segment], tuple[ThreadStart, ...]]:
        """The segments of the first turns in their order, of all by default, and how threads 1, 2, … began."""
        turns = self.turns[:n_turns]
        n_threads = 1 + max((turn.thread for turn in turns), default=0)
        starts = tuple(self._start(thread) for thread in self.threads[1:n_threads])
        return [segment for turn in turns for segment in turn.segments], starts

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
            if done < common:
                self._cut(turn, common - done)
            done += sum(map(len, turn.segments))
        return thread

    def _cut(self, turn: SessionTurn, at: int) -> None:
        """Let a segment end after the first `at` tokens of a turn, in all sessions that share it."""
        for segment in turn.segments:
            if 0 < at < len(segment):
                halves = segment_halves(segment, at, self.encoder)
                self.group.n_cuts += 1
                for shared in {id(turn): turn for session in self.group.sessions for turn in session.turns}.values():
                    if (number := _place(shared.segments, segment)) is not None:
                        shared.segments[number : number + 1] = halves
                return
            at -= len(segment)

    def _shared_prompt(self, prompt: array[int]) -> list[Segment]:
        """The segments of an equal prompt of another rollout of the group: it is stored and trained on once."""
        for session in self.group.sessions:
            first = [s for s in session.turns[0].segments if not s.is_sampled] if session.turns else []
            if sum(map(len, first)) == len(prompt) and array("i", [i for s in first for i in s.token_ids]) == prompt:
                return first
        return []

    def _turns_of(self, thread: SessionThread | None) -> Iterator[SessionTurn]:
        return (turn for turn in self.turns if thread is not None and turn.thread == thread.number)

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
        thread=turn.thread,
        text=text,
        token_ids=token_ids,
    )


def first_tokens(segments: Iterable[Segment], n_tokens: int) -> Iterator[Segment]:
    """The first segments, which have `n_tokens` together."""
    for segment in segments:
        if n_tokens <= 0:
            return
        yield segment
        n_tokens -= len(segment)


def _place(segments: Sequence[Segment], segment: Segment) -> int | None:
    """Return the place of this very segment."""
    return next((number for number, other in enumerate(segments) if other is segment), None)


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
