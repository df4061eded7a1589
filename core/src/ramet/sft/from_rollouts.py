"""Training rows from the recorded rollouts of a run: the best of each group for SFT, and pairs for preferences.

A row of SFT is a conversation that `ramet sft` reads: the task's messages, the policy's turns, and what tools returned
as separate turns. A pair has the layout of TRL: `prompt`, `chosen` and `rejected`, each a list of messages. Its prompt
is all that both rollouts have in common: the task's messages, or after a fork also the turns before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations, takewhile
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

from ramet.errors import ConfigError
from ramet.rollout.record import read_records
from ramet.rollout.record_files import recorded_files
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.sft.conversations import read_row
from ramet.types import Rollout, Segment, SegmentKind

Messages: TypeAlias = list[dict[str, str]]
Member: TypeAlias = tuple[ScoredRollout, Messages]
ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChoice:
    """The rollouts that become rows."""

    best: int = 1  # rows of SFT that a group gives at most
    min_reward: float | None = None  # of a row of SFT; None: more than its group's mean
    min_gap: float = 0.5  # between the rewards of a pair
    steps: tuple[int, int] | None = None  # first and last; None: all


@dataclass(slots=True, kw_only=True)
class Rows:
    """Rows with what they were made of. `unreadable` rollouts have several threads, or texts that no tool returned."""

    sft: list[dict[str, Any]] = field(default_factory=list)
    pairs: list[dict[str, Any]] = field(default_factory=list)
    groups: int = 0
    rollouts: int = 0
    unreadable: int = 0


def rows_of_run(folder: Path, choice: RowChoice) -> Rows:
    """Make rows of all training steps that are chosen, in order. Raises `ConfigError` for a run without records."""
    records = [file for file in recorded_files(folder) if file.kind == "step"]
    if choice.steps is not None:
        first, last = choice.steps
        records = [file for file in records if first <= file.step <= last]
    if not records:
        chosen = "" if choice.steps is None else f" of steps {choice.steps[0]} to {choice.steps[1]}"
        raise ConfigError(f"{folder}: no rollouts{chosen} are recorded here; `ramet train` records them in rollouts/")
    rows = Rows()
    for file in records:
        for record in read_records(file.path):
            _add_group(rows, record.group, file.step, choice)
    return rows


def _add_group(rows: Rows, group: ScoredGroup, step: int, choice: RowChoice) -> None:
    rows.groups += 1
    rows.rollouts += len(group.rollouts)
    readable = {scored.rollout.id: conversation(scored.rollout) for scored in group.valid}
    rows.unreadable += sum(messages is None for messages in readable.values())
    members = [(scored, messages) for scored in group.valid if (messages := readable[scored.rollout.id]) is not None]
    mean = fmean(_reward(scored) for scored in group.valid) if group.valid else 0.0
    for scored, messages in _best(members, mean, choice):
        rows.sft.append({"messages": messages, **_source(group, step), "reward": _reward(scored)})
    for chosen, rejected in _pairs(members, choice.min_gap):
        rows.pairs.append({**_pair(chosen[1], rejected[1]), **_source(group, step), **_rewards(chosen[0], rejected[0])})


def _best(members: Sequence[Member], mean: float, choice: RowChoice) -> list[Member]:
    """Return the best rollouts of a group that `ramet sft` reads, each text once; of equal rewards the first."""
    enough = [
        member
        for member in members
        if (_reward(member[0]) > mean if choice.min_reward is None else _reward(member[0]) >= choice.min_reward)
        and read_row({"messages": member[1]}, "", 0)[0] is not None
    ]
    texts: list[Member] = []
    for member in sorted(enough, key=lambda member: -_reward(member[0])):
        if all(member[1] != other[1] for other in texts):
            texts.append(member)
    return texts[: choice.best]


def _pairs(members: Sequence[Member], min_gap: float) -> Iterator[tuple[Member, Member]]:
    """Yield for each place where rollouts part, the end of the prompt or of a stored prefix, or a fork, the best
    rollout and the worst of those that continue otherwise than it, if their rewards differ by `min_gap`.
    """
    places: dict[bytes, int] = {}  # tokens before it -> segments before it
    for scored, _ in members:
        segments, n_shared = scored.rollout.segments, scored.rollout.n_shared
        shared = segments[:n_shared] or tuple(takewhile(lambda segment: not segment.is_sampled, segments))
        places[_ids(shared)] = len(shared)
    for ids, n_segments in places.items():
        after = [member for member in members if _ids(member[0].rollout.segments[:n_segments]) == ids]
        parted = [
            (chosen, rejected)
            for chosen, rejected in permutations(after, 2)
            if _next(chosen, n_segments) != _next(rejected, n_segments)
        ]
        chosen, rejected = max(parted, key=_gap, default=(None, None))
        if chosen is not None and rejected is not None and _gap((chosen, rejected)) >= min_gap:
            yield chosen, rejected


def _next(member: Member, n_segments: int) -> bytes:
    return _ids(member[0].rollout.segments[n_segments : n_segments + 1])


def _gap(pair: tuple[Member, Member]) -> float:
    return _reward(pair[0][0]) - _reward(pair[1][0])


def _pair(chosen: Messages, rejected: Messages) -> dict[str, Messages]:
    """Split off what both begin with. It ends before an assistant's message, where the two differ."""
    common = [both[0] for both in takewhile(lambda both: both[0] == both[1], zip(chosen, rejected, strict=False))]
    while common and (common[-1]["role"] == ASSISTANT or len(common) in (len(chosen), len(rejected))):
        common.pop()
    while common and chosen[len(common)]["role"] != ASSISTANT:  # results of equal calls that differ
        common.pop()
    return {"prompt": common, "chosen": chosen[len(common) :], "rejected": rejected[len(common) :]}


def conversation(rollout: Rollout) -> Messages | None:
    """Return the task's messages, then the policy's turns and each tool's result; None where that is not all of it.

    Texts are the recorded ones, without the token that ended a turn.
    """
    if len(rollout.threads) > 1 or any(s.kind is SegmentKind.MESSAGES for s in rollout.segments):
        return None
    is_begun = any(s.kind is SegmentKind.RESULT for s in rollout.segments[1:2])  # by an environment's observation
    if is_begun or any("calls_not_made" in info for info in rollout.infos):  # no tool's texts next to tools'
        return None
    messages = [{"role": message.role, "content": message.content} for message in rollout.task.prompt]
    results: dict[int, list[str]] = {}
    for call in rollout.tool_calls:
        results.setdefault(call.turn, []).append(call.text)
    turns = sorted({s.turn for s in rollout.segments if s.kind is SegmentKind.TURN})
    inserted = {s.turn for s in rollout.segments if s.kind is SegmentKind.RESULT}
    if not turns or inserted - results.keys():
        return None
    for turn in turns:
        text = "".join(s.text for s in rollout.segments if s.kind is SegmentKind.TURN and s.turn == turn)
        messages.append({"role": ASSISTANT, "content": text})
        if turn != turns[-1]:
            messages += [{"role": "tool", "content": result} for result in results.get(turn, [])]
    return messages


def _ids(segments: Sequence[Segment]) -> bytes:
    return b"".join(segment.token_ids.tobytes() for segment in segments)


def _reward(scored: ScoredRollout) -> float:
    assert scored.score is not None  # it is valid
    return scored.score


def _source(group: ScoredGroup, step: int) -> Mapping[str, Any]:
    return {"task": group.task.id, "data_source": group.task.data_source, "step": step}


def _rewards(chosen: ScoredRollout, rejected: ScoredRollout) -> Mapping[str, float]:
    return {"chosen_reward": _reward(chosen), "rejected_reward": _reward(rejected)}
