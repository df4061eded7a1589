"""Stored prefixes: the beginnings of rollouts of earlier steps, from which a branch policy may start new ones.

A group is kept as the record of its rollouts (`stored_group`), each up to where its last turn begins. Every place where
a turn begins is a place where a new rollout may start (`prefixes_of`). Text that the policy sampled then is inserted
text now: it has no log-probabilities, and nothing of it is trained again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ramet.config.schema import RolloutConfig
from ramet.rollout.keys import RolloutKey
from ramet.rollout.record import GroupRecord
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.rollout.tree import LiveRollout, TurnRecord
from ramet.types import (
    CallView,
    Origin,
    PrefixSource,
    PrefixView,
    Rollout,
    Segment,
    SegmentKind,
    TurnView,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPrefix:
    """The beginning of a stored rollout. `starts[t]`: segments before turn t, up to the turn that is sampled next."""

    source: PrefixSource
    reward: float | None  # of a group that was kept for branch policies
    rollout: Rollout
    starts: tuple[int, ...]

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.rollout.segments[: self.starts[-1]]

    @property
    def n_tokens(self) -> int:
        return sum(len(s) for s in self.segments if s.kind is not SegmentKind.PROMPT)

    @property
    def n_tool_calls(self) -> int:
        return sum(call.turn < self.source.turns for call in self.rollout.tool_calls)

    def has_room(self, limits: RolloutConfig) -> bool:
        """Whether a turn from here is within the limits."""
        return (
            self.n_tokens < limits.max_response_tokens
            and self.source.turns < limits.max_turns
            and self.n_tool_calls <= limits.max_tool_calls
        )

    @property
    def view(self) -> PrefixView:
        return PrefixView(n_tokens=self.n_tokens, turns=self.source.turns, reward=self.reward)

    @property
    def turns(self) -> tuple[TurnView, ...]:
        return tuple(_turn_view(self, turn) for turn in range(self.source.turns))

    def begin(self, key: RolloutKey, prompt: Segment) -> LiveRollout:
        """Return a new root that continues from here. All roots of a group share the same prompt segment."""
        rollout, segments = self.rollout, [prompt, *self.segments[1:]]
        live = LiveRollout(
            key=key,
            path=(int(key.path),),
            segments=segments,
            token_ids=array("i"),
            n_prompt_tokens=len(prompt),
            prefix=self.source,
            turns=[TurnRecord(start) for start in self.starts],
            response="".join(s.text for s in segments[1:]),
        )
        for turn, record in enumerate(live.turns[:-1]):
            record.calls = tuple(call for call in rollout.tool_calls if call.turn == turn)
        for record, info, reward in zip(live.turns[:-1], rollout.infos, rollout.turn_rewards, strict=False):
            record.info, record.reward = info, reward
        for record, name in zip(live.turns[:-1], rollout.state_keys, strict=False):
            record.state_key = name
        for segment in segments:
            live.token_ids.extend(segment.token_ids)
        return live


def stored_group(step: int, group: ScoredGroup) -> GroupRecord | None:
    """The stored part of a group whose rewards differ; None if they do not, or no rollout had a second turn.

    Masked rollouts and those that were left out are not kept. Rollouts are independent: forks become roots.
    """
    if len({scored.reward for scored in group.valid}) < 2:
        return None
    roots = {scored.rollout.id: scored.rollout.prefix for scored in group.rollouts if scored.rollout.parent is None}
    inserted: dict[int, Segment] = {}
    kept = [
        ScoredRollout(
            rollout=_cut(rollout, n_turns(rollout) - 1, roots[rollout.id.partition(".")[0]], inserted),
            reward=scored.reward,
        )
        for scored in group.valid
        if _can_begin(rollout := scored.rollout)
    ]
    return GroupRecord(step=step, group=ScoredGroup(task=group.task, rollouts=tuple(kept))) if kept else None


def n_stored_tokens(record: GroupRecord) -> int:
    """Number of its tokens; shared tokens count once."""
    segments = {id(s): s for scored in record.group.rollouts for s in scored.rollout.segments}
    return sum(len(segment) for segment in segments.values())


def prefixes_of(record: GroupRecord) -> tuple[StoredPrefix, ...]:
    """Each place once, in order of rollouts and turns; what several rollouts share is the first one's."""
    return tuple(_prefixes(record))


def prefixes_with_room(record: GroupRecord, limits: RolloutConfig) -> tuple[StoredPrefix, ...]:
    """Return those with room for a turn within the limits, which may differ from when they were stored."""
    return tuple(prefix for prefix in prefixes_of(record) if prefix.has_room(limits))


def prefix_at(record: GroupRecord, rollout: Rollout, turn: int) -> StoredPrefix:
    """Return the beginning of a rollout of one thread, up to where `turn` begins, which may follow its last one.

    `rollout`: recorded in the group, or what runs in its place now. Turn 0 begins after the prompt, and after the first
    observation of an environment.
    """
    root = rollout.id.partition(".")[0]
    source = next(other.rollout.prefix for other in record.group.rollouts if other.rollout.id == root)
    starts = turn_starts(rollout.segments, turn)
    begun = replace(rollout, segments=tuple(map(_inserted, rollout.segments[: starts[-1]])), prefix=source)
    return StoredPrefix(source=_source(record.step, begun, turn), reward=None, rollout=begun, starts=starts)


def n_turns(rollout: Rollout) -> int:
    return 1 + max((s.turn for s in rollout.segments), default=0)


def begin_problems(begin: StoredPrefix, prompt: Segment, limits: RolloutConfig) -> list[str]:
    """Why rollouts cannot begin there: with another prompt, or without room for a turn."""
    problems = prompt_problems(begin.source.step, begin.rollout, prompt)
    if not begin.has_room(limits):
        problems.append(
            f"rollout {begin.source.rollout} of task {begin.rollout.task.id!r}, step {begin.source.step}: turn "
            f"{begin.source.turns} cannot begin with rollout.max_response_tokens={limits.max_response_tokens}, "
            f"rollout.max_turns={limits.max_turns} and rollout.max_tool_calls={limits.max_tool_calls}; before it are "
            f"{begin.n_tokens} tokens and {begin.n_tool_calls} calls; raise the limits"
        )
    return problems


def prompt_problems(step: int, stored: Rollout, prompt: Segment) -> list[str]:
    """Why rollouts of a task cannot continue from a stored one: its prompt has other tokens now."""
    before = stored.segments[0]
    if before.token_ids == prompt.token_ids:
        return []
    return [
        f"stored prefixes of task {stored.task.id!r}, step {step}: they begin with another prompt "
        f"({len(before)} tokens, now {len(prompt)}), of another tokenizer, chat template, rollout step, system prompt "
        "or set of tools; a rollout cannot continue from them"
    ]


def _cut(rollout: Rollout, last: int, prefix: PrefixSource | None, inserted: dict[int, Segment]) -> Rollout:
    """Return the rollout up to where turn `last` begins."""
    end = turn_starts(rollout.segments, last)[-1]
    return replace(
        rollout,
        segments=tuple(inserted.setdefault(id(s), _inserted(s)) for s in rollout.segments[:end]),
        answer=None,
        parent=None,
        fork_turn=None,
        fork_token=0,
        n_shared=0,
        prefix=prefix,
        tool_calls=tuple(call for call in rollout.tool_calls if call.turn < last),
        infos=rollout.infos[:last],
        turn_rewards=rollout.turn_rewards[:last],
        token_rewards={},
        state_keys=rollout.state_keys[:last],
        stats={},
    )


def _inserted(segment: Segment) -> Segment:
    if not segment.is_sampled:
        return segment
    return replace(segment, origin=Origin.INSERTED, logprobs=None, entropies=None, policy_version=None)


def _can_begin(rollout: Rollout) -> bool:
    """Whether others can continue from one of its turns: it has several, of one thread."""
    return n_turns(rollout) > 1 and not rollout.thread_starts


def turn_starts(segments: Sequence[Segment], turns: int) -> tuple[int, ...]:
    """Segments before each turn, up to number `turns`, which may follow the last segment.

    An environment's first observation is of turn 0, and before its sampled tokens.
    """
    first = (i for i, s in enumerate(segments) if s.kind is SegmentKind.TURN or s.turn > 0)
    later = (next((i for i, s in enumerate(segments) if s.turn >= t), len(segments)) for t in range(1, turns + 1))
    return (next(first, len(segments)), *later)


def _prefixes(record: GroupRecord) -> Iterator[StoredPrefix]:
    seen: set[int] = set()
    for scored in record.group.rollouts:
        rollout, turns = scored.rollout, n_turns(scored.rollout)
        assert scored.reward is not None  # only such rollouts are stored
        starts = turn_starts(rollout.segments, turns)
        for turn in range(1, turns + 1):
            last = id(rollout.segments[starts[turn] - 1])
            if last not in seen:
                seen.add(last)
                source = _source(record.step, rollout, turn)
                yield StoredPrefix(source=source, reward=scored.reward, rollout=rollout, starts=starts[: turn + 1])


def _source(step: int, rollout: Rollout, turns: int) -> PrefixSource:
    opened = (step, rollout.id.partition(".")[0])
    if rollout.prefix is not None:
        opened = (rollout.prefix.opened_step, rollout.prefix.opened_root)
    return PrefixSource(step=step, rollout=rollout.id, turns=turns, opened_step=opened[0], opened_root=opened[1])


def _turn_view(prefix: StoredPrefix, turn: int) -> TurnView:
    sampled = [s for s in prefix.segments if s.kind is SegmentKind.TURN and s.turn == turn]
    calls = (call for call in prefix.rollout.tool_calls if call.turn == turn)
    return TurnView(
        index=turn,
        entropies=(),
        n_tokens=sum(len(s) for s in sampled),
        ended=True,
        n_forks=0,
        calls=tuple(CallView(name=c.name, status=c.status, truncated=c.truncated) for c in calls),
    )
