"""Live rollouts: the tree of segments while it grows.

A fork starts with the very segment objects of its parent, so a shared prefix exists once in memory; a segment is never
changed once it is in a rollout. `freeze` turns a live rollout into the record that the scheduler returns.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from ramet.rollout.keys import BranchPath, RolloutKey, path_text
from ramet.types import (
    Fault,
    Generation,
    Group,
    PrefixSource,
    Rollout,
    RolloutScore,
    Segment,
    SegmentKind,
    StopReason,
    Task,
    ThreadStart,
    ToolRecord,
)

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder
    from ramet.rollout.states import HeldState


@dataclass(slots=True, eq=False)
class TurnRecord:
    """Data of one turn. Forks copy the data of their shared turns: `split` moves the starts of each path."""

    start: int  # segments in front of it
    thread: int = 0  # the one of the rollout's threads that it belongs to
    calls: tuple[ToolRecord, ...] = ()
    generation: Generation | None = None  # a replayed environment gets it again
    info: Mapping[str, Any] | None = None  # None: it has not ended
    reward: float | None = None
    state_key: str | None = None  # of the environment's state as the turn began


@dataclass(slots=True, eq=False)
class LiveRollout:
    """One path that is still growing. Owned by the group's scheduler; only its own runner appends to it."""

    key: RolloutKey
    path: BranchPath
    segments: list[Segment]
    token_ids: array[int]  # all segments' ids joined: the engine's prompt
    n_prompt_tokens: int
    turns: list[TurnRecord]  # those that began
    parent: LiveRollout | None = None
    fork_turn: int | None = None
    fork_token: int = 0
    fork_reason: Mapping[str, float] = field(default_factory=dict)
    n_shared: int = 0
    prefix: PrefixSource | None = None  # of a root that began with a stored prefix
    response: str = ""
    thread_starts: tuple[ThreadStart, ...] = ()
    stop: StopReason | None = None
    answer: str | None = None
    token_rewards: Mapping[int, float] = field(default_factory=dict)  # by response position
    fault: Fault | None = None
    left_out: str | None = None  # why, if it is on purpose
    ends_at: float | None = None  # when its deadline is, in the event loop's time; None: it has not begun
    finished: bool = False
    sampled: bool = False  # its first tokens are there, or it ended without any
    n_forks: int = 0
    score: RolloutScore | None = None  # for policies with `Need.REWARDS`
    stats: dict[str, float] = field(default_factory=dict)
    states: dict[str, HeldState] = field(default_factory=dict)  # by component

    @property
    def turn(self) -> int:
        """The one that began last."""
        return len(self.turns) - 1

    @property
    def tool_calls(self) -> list[ToolRecord]:
        return [call for turn in self.turns for call in turn.calls]

    @property
    def is_pruned(self) -> bool:
        """The branch policy stopped it."""
        return self.stop is StopReason.PRUNED

    @property
    def root(self) -> LiveRollout:
        return self if self.parent is None else self.parent.root

    @property
    def first_turn(self) -> int:
        """The turn in which its own tokens begin."""
        if self.fork_turn is not None:
            return self.fork_turn
        return 0 if self.prefix is None else self.prefix.turns

    @property
    def n_response_tokens(self) -> int:
        return len(self.token_ids) - self.n_prompt_tokens

    def append(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.token_ids.extend(segment.token_ids)
        self.response += segment.text

    def begin_turn(self) -> None:
        """The next turn starts after all segments that are here now: there it may be forked."""
        self.turns.append(TurnRecord(len(self.segments)))

    def fork(self, turn: int, token: int = 0) -> LiveRollout:
        """A new rollout that begins in `turn`, after `token` of its tokens, where a segment ends (`split`).

        The k-th fork of a rollout, counted from 0, has the path `<path>.k`.
        """
        path = (*self.path, self.n_forks)
        self.n_forks += 1
        fork = self.until(turn)
        while token > sum(len(s) for s in fork.segments[fork.turns[turn].start :]):
            fork.append(self.segments[len(fork.segments)])
        fork.key = replace(self.key, path=path_text(path))
        fork.path, fork.parent, fork.n_shared = path, self, len(fork.segments)
        fork.fork_turn, fork.fork_token = turn, token
        return fork

    @property
    def sampled_in_turn(self) -> list[Segment]:
        """Segments of the current turn so far; for a fork in the middle of a turn, its parent's tokens first."""
        segments = self.segments[self.turns[-1].start :]
        return [s for s in segments if s.kind is SegmentKind.TURN] if segments else segments  # nearly always none

    def until(self, turn: int) -> LiveRollout:
        """This rollout as it was at the beginning of `turn`, with the same segments."""
        return self._with_segments(self.turns[turn].start, turn)

    def _with_segments(self, n: int, turn: int) -> LiveRollout:
        """Return a rollout with the first n segments, of which the last are of `turn` or before it."""
        shared = self.segments[:n]
        return LiveRollout(
            key=self.key,
            path=self.path,
            segments=shared,
            token_ids=self.token_ids[: sum(len(s) for s in shared)],
            n_prompt_tokens=self.n_prompt_tokens,
            turns=[*map(replace, self.turns[:turn]), TurnRecord(self.turns[turn].start)],
            ends_at=self.ends_at,
            response="".join(s.text for s in shared if s.kind is not SegmentKind.PROMPT),
        )

    def cut(self, turn: int) -> None:
        """End it as PRUNED, as it was at the beginning of `turn`. In the turn that it began with, as it began: a root
        with only the prompt (whether or not an environment has given its first observation), a fork at its fork point.
        """
        before = self.until(turn)
        if turn == (self.fork_turn or 0):
            prompt = sum(segment.kind is SegmentKind.PROMPT for segment in self.segments)
            before = self._with_segments(max(prompt, self.n_shared), turn)
        self.segments, self.token_ids, self.response = before.segments, before.token_ids, before.response
        self.turns = before.turns
        self.thread_starts = self.thread_starts[: max(segment.thread for segment in self.segments)]
        self.stop, self.fault, self.answer, self.score = StopReason.PRUNED, None, None, None
        self.token_rewards = {}

    def inserted(self, turn: int) -> str:
        """Text inserted after an ended turn; -1: the first observation, after the prompt."""
        start = self.turns[turn].start if turn >= 0 else 1
        between = self.segments[start : self.turns[turn + 1].start]
        return "".join(s.text for s in between if s.kind is not SegmentKind.TURN)

    def record_turn(self, info: Mapping[str, Any], reward: float | None) -> None:
        """Keep the info and the reward that the rollout step gave for the turn that ended."""
        self.turns[-1].info, self.turns[-1].reward = _as_json(info), reward

    def record_end(self, info: Mapping[str, Any], reward: float | None) -> None:
        """Merge the info and the reward that it gave for the rollout's end into the last turn's."""
        last = self.turns[-1]
        last.info = {**(last.info or {}), **_as_json(info)}
        if reward is not None:
            last.reward = (last.reward or 0.0) + reward

    @property
    def stop_reason(self) -> StopReason:
        """Why it ended; FAULT if it is masked, whatever it had reached."""
        stop = StopReason.FAULT if self.fault is not None else self.stop
        assert stop is not None, f"rollout {self.key} has not stopped"
        return stop

    def add_stat(self, name: str, value: float) -> None:
        self.stats[name] = self.stats.get(name, 0.0) + value

    @property
    def _n_named(self) -> int:
        """Turns up to the last whose state has a name: a step without names gives none."""
        return max((n for n, turn in enumerate(self.turns, start=1) if turn.state_key is not None), default=0)

    def freeze(self, task: Task) -> Rollout:
        """The finished rollout."""
        return Rollout(
            id=self.key.path,
            task=task,
            segments=tuple(self.segments),
            stop=self.stop_reason,
            thread_starts=self.thread_starts,
            answer=self.answer,
            parent=None if self.parent is None else self.parent.key.path,
            fork_turn=self.fork_turn,
            fork_token=self.fork_token,
            fork_reason=self.fork_reason,
            n_shared=self.n_shared,
            prefix=self.prefix,
            tool_calls=tuple(self.tool_calls),
            infos=tuple(turn.info for turn in self.turns if turn.info is not None),
            turn_rewards=tuple(turn.reward for turn in self.turns if turn.info is not None),
            token_rewards=self.token_rewards,
            state_keys=tuple(turn.state_key for turn in self.turns[: self._n_named]),
            fault=self.fault,
            left_out="branch_policy" if self.stop is StopReason.PRUNED else self.left_out,
            stats=dict(self.stats),
        )


def _as_json(info: Mapping[str, Any]) -> dict[str, Any]:
    """Copy it as the record on disk gives it back: the step may continue with its own objects."""
    return dict(json.loads(json.dumps(dict(info)))) if info else {}


def split(rollouts: Iterable[LiveRollout], owner: LiveRollout, turn: int, token: int, encoder: Encoder) -> None:
    """Let a segment end after `token` sampled tokens of a turn of `owner`, in all `rollouts` that share it.

    A shared segment has the same index in each of them.
    """
    index, before = owner.turns[turn].start, 0
    while before + len(owner.segments[index]) <= token:
        before += len(owner.segments[index])
        index += 1
    if before == token:
        return
    segment = owner.segments[index]
    halves = segment_halves(segment, token - before, encoder)
    for rollout in rollouts:
        if index < len(rollout.segments) and rollout.segments[index] is segment:
            rollout.segments[index : index + 1] = halves
            for record in rollout.turns:
                record.start += record.start > index
            rollout.n_shared += rollout.n_shared > index


def segment_halves(segment: Segment, at: int, encoder: Encoder) -> tuple[Segment, Segment]:
    """Return the segment's first `at` tokens, and the others. Their texts join to its own."""
    shown = n_decoded(segment.token_ids[:at], segment.text, encoder)
    logprobs, entropies = segment.logprobs, segment.entropies
    first = replace(
        segment,
        text=segment.text[:shown],
        token_ids=segment.token_ids[:at],
        logprobs=None if logprobs is None else logprobs[:at],
        entropies=None if entropies is None else entropies[:at],
    )
    second = replace(
        segment,
        text=segment.text[shown:],
        token_ids=segment.token_ids[at:],
        logprobs=None if logprobs is None else logprobs[at:],
        entropies=None if entropies is None else entropies[at:],
    )
    return first, second


def n_decoded(ids: array[int], text: str, encoder: Encoder) -> int:
    """How much of a text its first tokens decode to; a character that a later token completes is that one's."""
    pairs = zip(encoder.decode(ids), text, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def new_root(key: RolloutKey, prompt: Segment) -> LiveRollout:
    """A root: only the prompt. All roots of a group share the same prompt segment."""
    return LiveRollout(
        key=key,
        path=(int(key.path),),
        segments=[prompt],
        token_ids=array("i", prompt.token_ids),
        n_prompt_tokens=len(prompt),
        turns=[TurnRecord(1)],
    )


def group_of(task: Task, live: list[LiveRollout], *, n_unused: int = 0) -> Group:
    """The group in order of branch paths (numbers compare as numbers; a parent is before its forks)."""
    rollouts = tuple(live_rollout.freeze(task) for live_rollout in sorted(live, key=lambda r: r.path))
    scores = {live_rollout.key.path: live_rollout.score for live_rollout in live if live_rollout.score is not None}
    return Group(task=task, rollouts=rollouts, n_unused=n_unused, scores=scores)
