"""Segments, rollouts and groups: tokens are the record (docs/design.md, "How a token's mask is made").

A rollout is one path from the prompt to a stop, as a sequence of segments. A fork and its parent share the *same*
segments up to the fork point, so a group is a tree and a shared prefix exists once in memory. Token ids come from
the engine and are never re-tokenised; text is derived from them.

A rollout has one thread or several: token paths, such as the conversations of an agent with sub-agents. Its segments
are turn after turn in the order in which the turns were asked for, whatever their thread, each segment once. A thread
may begin with segments of an earlier one, which are context there.

Arrays are `array.array` so that the contract needs no numpy: `"i"` is int32, `"f"` is float32; both offer the buffer
protocol (`torch.frombuffer`, `numpy.frombuffer`) without a copy.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ramet.types.task import Task


class Origin(StrEnum):
    """The writer of a segment's tokens. Only `sampled` tokens are trained."""

    SAMPLED = "sampled"  # the policy, in this rollout
    INSERTED = "inserted"  # any other source, or the policy of an earlier step (a stored prefix)


class SegmentKind(StrEnum):
    PROMPT = "prompt"
    TURN = "turn"  # sampled by the policy, in this step or, in a stored prefix, in an earlier one
    RESULT = "result"  # what a tool returned, with its wrapper
    MESSAGES = "messages"  # what an agent's request added to its thread, before the turn that it asks for
    FORCED = "forced"  # a token that the core put there to end a rollout; never trained


class StopReason(StrEnum):
    """Why a rollout ended."""

    ANSWER = "answer"  # the rollout step found a final answer
    END = "end"  # the policy sampled an end-of-sequence token
    LENGTH = "length"  # token limit
    TURN_LIMIT = "turn_limit"
    CALL_LIMIT = "call_limit"  # the policy asked for one more tool call than allowed
    DONE = "done"  # the environment ended it
    PRUNED = "pruned"  # the branch policy stopped it; left out of statistics and loss, and counted
    FAULT = "fault"  # infrastructure failed; the rollout is masked


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of token ids of one origin. Never changed once it is in a rollout: forks share the object."""

    origin: Origin
    kind: SegmentKind
    turn: int  # 0-based; the prompt is in turn 0, a tool result in the turn whose call it answers
    text: str
    token_ids: array[int]  # int32
    logprobs: array[float] | None = None  # float32, sampled only: the engine's own (mu), at the sampling temperature
    entropies: array[float] | None = None  # float32, sampled only: exact, in nats, at the sampling temperature
    policy_version: int | None = None  # sampled only: version of the weights that sampled it
    thread: int = 0  # of the rollout's threads, the one that it was added to

    @property
    def is_sampled(self) -> bool:
        return self.origin is Origin.SAMPLED

    def __len__(self) -> int:
        return len(self.token_ids)


class CallStatus(StrEnum):
    OK = "ok"
    ERROR = "error"  # the model's own doing; its text went to the model
    INFRA = "infra"  # an infrastructure failure; the rollout was masked


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRecord:
    """One tool call as it happened. Times in seconds on a monotonic clock."""

    turn: int
    name: str
    arguments: Mapping[str, Any]
    status: CallStatus
    text: str  # what the model was shown, before wrapping
    wait_s: float  # queued before it ran
    run_s: float
    attempts: int
    cached: bool = False  # answered by an identical call in flight or by a cache
    truncated: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)  # JSON, from `ToolResult.metadata`


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a rollout is masked: what failed (`tool:python`, `engine`, `reward:math`, `deadline`) and its message.

    `plugin:` before it (`plugin:step`, `plugin:state:python`) says that a plugin has a defect, which no retry fixes.
    """

    where: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixSource:
    """The origin of the prefix with which a rollout began: an earlier step's rollout of the same task."""

    step: int
    rollout: str
    turns: int  # complete turns of that rollout; the next one is the first that is sampled
    opened_step: int  # the step and the root in which the path first left the prompt: tools and environments …
    opened_root: str  # … that are replayed are opened with the seed that they had there


@dataclass(frozen=True, slots=True)
class ThreadStart:
    """How a thread began: after the first `n_segments` of an earlier thread's path. 0 segments: with nothing of it."""

    thread: int
    n_segments: int


@dataclass(frozen=True, slots=True)
class Thread:
    """One token path of a rollout: all segments that its last turn was sampled after, and that turn."""

    segments: tuple[Segment, ...]
    n_context: int = 0  # the first segments, which are an earlier thread's own

    @property
    def own(self) -> tuple[Segment, ...]:
        """The segments that were added to this thread."""
        return self.segments[self.n_context :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One finished path from the prompt to a stop.

    `id` is the branch path inside the group: roots are `"0"`, `"1"`, …; the second fork of root 0 is `"0.1"`.
    `segments` has every segment once, in order of turns. `segments[:n_shared]` are the parent's own objects.
    """

    id: str
    task: Task
    segments: tuple[Segment, ...]
    stop: StopReason
    thread_starts: tuple[ThreadStart, ...] = ()  # of threads 1, 2, …; nearly all rollouts have only thread 0
    answer: str | None = None  # what the rollout step took as the final answer; None: no answer
    parent: str | None = None
    fork_turn: int | None = None  # the turn of the parent in which this rollout starts, at its beginning or …
    fork_token: int = 0  # … after so many of the tokens that were sampled in it
    fork_reason: Mapping[str, float] = field(default_factory=dict)  # `Fork.reason`
    n_shared: int = 0
    prefix: PrefixSource | None = None  # of a rollout that began with a stored prefix (`StartFrom`)
    tool_calls: tuple[ToolRecord, ...] = ()
    infos: tuple[Mapping[str, Any], ...] = ()  # `StepResult.info` by turn; shorter if a turn never ended
    turn_rewards: tuple[float | None, ...] = ()  # `StepResult.reward` by turn; None: the turn gave none
    token_rewards: Mapping[int, float] = field(default_factory=dict)  # of an agent's tokens, by response position
    state_keys: tuple[str | None, ...] = ()  # `Environment.state_key` by turn, as it began; None: it had no name
    fault: Fault | None = None
    left_out: str | None = None  # why it was left out of statistics and loss on purpose; no fault
    stats: Mapping[str, float] = field(default_factory=dict)  # seconds and counts of this rollout only

    @property
    def valid(self) -> bool:
        """Whether it counts. False: infrastructure failed, or it was left out of the group statistics and the loss."""
        return self.fault is None and self.left_out is None

    @property
    def threads(self) -> tuple[Thread, ...]:
        """Return its token paths, in the order in which they began. With one thread it has all segments."""
        if not self.thread_starts:
            return (Thread(self.segments),)
        threads: list[Thread] = []
        for number, start in enumerate((ThreadStart(0, 0), *self.thread_starts)):
            context = threads[start.thread].segments[: start.n_segments] if number else ()
            own = tuple(segment for segment in self.segments if segment.thread == number)
            threads.append(Thread(context + own, len(context)))
        return tuple(threads)

    @property
    def first_turn(self) -> int:
        """The turn in which its own tokens begin."""
        if self.fork_turn is not None:
            return self.fork_turn
        return 0 if self.prefix is None else self.prefix.turns

    @property
    def response(self) -> str:
        """All text after the prompt, tool results included."""
        return "".join(s.text for s in self.segments if s.kind is not SegmentKind.PROMPT)

    @property
    def sampled(self) -> str:
        """All text that the policy wrote, tool results left out; a stored prefix included."""
        return "".join(s.text for s in self.segments if s.kind is SegmentKind.TURN)

    @property
    def reply(self) -> str:
        """The policy's text in its last turn."""
        last = [s for s in self.segments if s.kind is SegmentKind.TURN]
        return "".join(s.text for s in last if s.turn == last[-1].turn)

    @property
    def n_sampled_tokens(self) -> int:
        """The segments that are trained: a stored prefix is not."""
        return sum([len(s.token_ids) for s in self.segments if s.origin is Origin.SAMPLED])

    @property
    def n_response_tokens(self) -> int:
        return sum([len(s.token_ids) for s in self.segments if s.kind is not SegmentKind.PROMPT])


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutScore:
    """The rewards of a rollout that was scored while its group ran (`Need.REWARDS`)."""

    reward: float | None  # weighted sum of the rewards; None: it has a fault or is left out
    parts: Mapping[str, float] = field(default_factory=dict)
    token_rewards: Mapping[int, float] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)  # `Score.reason` by reward name
    fault: Fault | None = None  # a reward failed
    left_out: str | None = None  # a reward left it out on purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All rollouts of one task in one step, in order of their branch paths."""

    task: Task
    rollouts: tuple[Rollout, ...]
    n_unused: int = 0  # rollouts that the branch policy left of the budget (`Done`)
    scores: Mapping[str, RolloutScore] = field(default_factory=dict)  # by rollout; scored once, so not again

    @property
    def valid(self) -> tuple[Rollout, ...]:
        return tuple(r for r in self.rollouts if r.valid)
