"""Live rollouts: the tree of segments while it grows.

A fork starts with the very segment objects of its parent, so a shared prefix exists once in memory; a segment is never
changed once it stands in a rollout. `freeze` turns a live rollout into the record that leaves the scheduler.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace

from ramet.rollout.keys import Path, RolloutKey, path_text
from ramet.types import Fault, Group, Rollout, Segment, SegmentKind, StopReason, Task, ToolRecord


@dataclass(slots=True, eq=False)
class LiveRollout:
    """One path that is still growing. Owned by the group's scheduler; only its own player appends to it."""

    key: RolloutKey
    path: Path
    segments: list[Segment]
    token_ids: array[int]  # all segments' ids joined: what the engine is asked to continue
    n_prompt_tokens: int
    parent: LiveRollout | None = None
    fork_turn: int | None = None
    n_shared: int = 0
    turn: int = 0
    starts: list[int] = field(default_factory=list)  # starts[t]: segments in front of turn t
    tool_calls: list[ToolRecord] = field(default_factory=list)
    response: str = ""
    stop: StopReason | None = None
    answer: str | None = None
    fault: Fault | None = None
    ends_at: float | None = None  # when its deadline is, in the event loop's time; None: it has not begun
    finished: bool = False
    sampled: bool = False  # its first tokens are there, or it ended without any
    n_forks: int = 0
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def n_response_tokens(self) -> int:
        return len(self.token_ids) - self.n_prompt_tokens

    def append(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.token_ids.extend(segment.token_ids)
        self.response += segment.text

    def begin_turn(self) -> None:
        """The next turn starts behind what stands here now: this is where it may be forked."""
        self.turn += 1
        self.starts.append(len(self.segments))

    def fork(self, turn: int) -> LiveRollout:
        """A new rollout that begins at `turn`. The k-th fork of a rollout, counted from 0, has the path `<path>.k`."""
        path = (*self.path, self.n_forks)
        self.n_forks += 1
        shared = self.segments[: self.starts[turn]]
        behind = [s for s in shared if s.kind is not SegmentKind.PROMPT]
        n_tokens = sum(len(s) for s in shared)
        return LiveRollout(
            key=replace(self.key, path=path_text(path)),
            path=path,
            segments=shared,
            token_ids=self.token_ids[:n_tokens],
            n_prompt_tokens=self.n_prompt_tokens,
            parent=self,
            fork_turn=turn,
            n_shared=len(shared),
            turn=turn,
            starts=self.starts[: turn + 1],
            tool_calls=[c for c in self.tool_calls if c.turn < turn],
            response="".join(s.text for s in behind),
        )

    @property
    def stop_reason(self) -> StopReason:
        """Why it ended; FAULT if it is masked, whatever it had reached."""
        stop = StopReason.FAULT if self.fault is not None else self.stop
        assert stop is not None, f"rollout {self.key} has not stopped"
        return stop

    def add_stat(self, name: str, value: float) -> None:
        self.stats[name] = self.stats.get(name, 0.0) + value

    def freeze(self, task: Task) -> Rollout:
        """The finished rollout."""
        return Rollout(
            id=self.key.path,
            task=task,
            segments=tuple(self.segments),
            stop=self.stop_reason,
            answer=self.answer,
            parent=None if self.parent is None else self.parent.key.path,
            fork_turn=self.fork_turn,
            n_shared=self.n_shared,
            tool_calls=tuple(self.tool_calls),
            fault=self.fault,
            stats=dict(self.stats),
        )


def plant(key: RolloutKey, prompt: Segment) -> LiveRollout:
    """A root: nothing but the prompt. All roots of a group hold the same prompt segment."""
    return LiveRollout(
        key=key,
        path=(int(key.path),),
        segments=[prompt],
        token_ids=array("i", prompt.token_ids),
        n_prompt_tokens=len(prompt),
        starts=[1],
    )


def group_of(task: Task, live: list[LiveRollout]) -> Group:
    """The group in order of branch paths (numbers compare as numbers; a parent stands before its forks)."""
    return Group(task=task, rollouts=tuple(one.freeze(task) for one in sorted(live, key=lambda r: r.path)))
