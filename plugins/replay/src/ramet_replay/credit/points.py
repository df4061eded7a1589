"""The rollouts of a run whose turns are measured, and the points where they are continued: the beginnings of turns.

A rollout is named `STEP/GROUP/ROLLOUT`, as in the report; a point `STEP/GROUP/ROLLOUT:TURN`. What rollouts of a group
share (the prompt, the turns before a fork) is one point, with the name of the first rollout that has it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from ramet.errors import ConfigError
from ramet.rollout.keys import stable_seed
from ramet.rollout.prefixes import StoredPrefix, n_turns, prefix_at, turn_starts
from ramet.rollout.record import GroupRecord, read_records
from ramet.rollout.record_files import recorded_files
from ramet.rollout.scoring import ScoredRollout
from ramet.types import Task

NAME = re.compile(r"(\d+)/(\d+)/(\d+(?:\.\d+)*)")
SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditPoint:
    """The place in a recorded rollout where its continuations begin."""

    name: str
    task: Task
    prefix: StoredPrefix

    @property
    def step(self) -> int:
        """The step in the keys of its continuations: unique, so that no two points sample with the same seeds."""
        return stable_seed("credit", self.name)

    @property
    def begins(self) -> str:
        """The digest of the tokens before it."""
        tokens = b"".join(segment.token_ids.tobytes() for segment in self.prefix.segments)
        return hashlib.sha256(tokens).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRollout:
    """A recorded rollout. `points[t]`: where its turn t begins; shared ones are equal in all that share them."""

    name: str
    scored: ScoredRollout
    points: tuple[CreditPoint, ...]

    @property
    def end(self) -> float:
        """The score of the rollout, which is the value of its end."""
        score = self.scored.score
        assert score is not None  # masked rollouts are not chosen
        return score


def choose(run: Path, *, names: Sequence[str], step: int | None, n: int) -> list[ChosenRollout]:
    """Return the rollouts of these names or, without any, `n` of a step (None: the last) spread over its groups.

    Of each group, rollouts with the highest and the lowest reward take turns; only those with tool calls, or with turns
    of an environment, are taken. Raises `ConfigError` for what was not recorded or cannot be measured.
    """
    files = {file.step: file.path for file in recorded_files(run) if file.kind == "step"}
    if not files:
        raise ConfigError(f"{run}: no recorded rollouts of training steps (working directory: {Path.cwd()})")
    if names:
        return list(_named(files, names))
    step = max(files) if step is None else step
    chosen = _spread(_groups(files, step), n)
    if not chosen:
        raise ConfigError(f"{run}: no rollout of step {step} made a tool call, or all that did were masked")
    return chosen


def points_of(rollouts: Iterable[ChosenRollout]) -> list[CreditPoint]:
    """Return each point once, in order."""
    return list({point.name: point for rollout in rollouts for point in rollout.points}.values())


def _groups(files: Mapping[int, Path], step: int) -> list[GroupRecord]:
    if step not in files:
        steps = ", ".join(map(str, sorted(files)[-SHOWN:]))
        raise ConfigError(f"step {step}: no rollouts were recorded; the last recorded steps: {steps}")
    return list(read_records(files[step]))


def _named(files: Mapping[int, Path], names: Sequence[str]) -> Iterator[ChosenRollout]:
    read: dict[int, list[GroupRecord]] = {}
    for name in dict.fromkeys(names):
        match = NAME.fullmatch(name)
        if match is None:
            raise ConfigError(f"--rollout {name}: must be STEP/GROUP/ROLLOUT as in the report, such as 3/0/1.0")
        step, group, id = int(match[1]), int(match[2]), match[3]
        if step not in read:
            read[step] = _groups(files, step)
        records = read[step]
        record = records[group] if group < len(records) else None
        scored = next((s for s in record.group.rollouts if s.rollout.id == id), None) if record else None
        if record is None or scored is None:
            raise ConfigError(f"--rollout {name}: step {step} has no such rollout; it has {len(records)} groups")
        if (problem := _problem(scored)) is not None:
            raise ConfigError(f"--rollout {name}: {problem}")
        yield _chosen(record, group, scored)


def _spread(records: Sequence[GroupRecord], n: int) -> list[ChosenRollout]:
    """Take one of each group after the other, groups whose rewards differ first."""
    by_group = [
        [(record, number, scored) for scored in _extremes(record)]
        for number, record in sorted(enumerate(records), key=lambda pair: not _differs(pair[1]))
    ]
    in_turns = (entry for entry in chain.from_iterable(zip_longest(*by_group)) if entry is not None)
    return [_chosen(*entry) for entry, _ in zip(in_turns, range(n), strict=False)]


def _differs(record: GroupRecord) -> bool:
    return len({scored.score for scored in record.group.valid}) > 1


def _extremes(record: GroupRecord) -> Iterator[ScoredRollout]:
    """Yield those with something to measure: the highest score, the lowest, the second highest, …"""
    usable = [s for s in record.group.rollouts if _problem(s) is None and n_turns(s.rollout) > 1]
    ordered = sorted(usable, key=lambda scored: -(scored.score or 0.0))
    while ordered:
        yield ordered.pop(0)
        if ordered:
            yield ordered.pop()


def _problem(scored: ScoredRollout) -> str | None:
    if scored.reward is None:
        return "it was masked or left out, so nothing is known of its end"
    if scored.rollout.thread_starts:
        return "it has several threads, as rollouts of agents have; only rollouts of one thread can be continued"
    return None


def _chosen(record: GroupRecord, group: int, scored: ScoredRollout) -> ChosenRollout:
    names, segments = _names(record, group), scored.rollout.segments
    begins = [prefix_at(record, scored.rollout, turn) for turn in range(n_turns(scored.rollout))]
    points = [
        CreditPoint(name=names[id(segments[begin.starts[-1] - 1])], task=record.group.task, prefix=begin)
        for begin in begins
    ]
    return ChosenRollout(name=f"{record.step}/{group}/{scored.rollout.id}", scored=scored, points=tuple(points))


def _names(record: GroupRecord, group: int) -> dict[int, str]:
    """The names of a group's points, by the last segment before each, which rollouts share."""
    names: dict[int, str] = {}
    for rollout in (scored.rollout for scored in record.group.rollouts):
        for turn, start in enumerate(turn_starts(rollout.segments, n_turns(rollout) - 1)):
            names.setdefault(id(rollout.segments[start - 1]), f"{record.step}/{group}/{rollout.id}:{turn}")
    return names
