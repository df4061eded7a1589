"""A worker's groups until they are recorded: their rows with advantages, and the worker's part of a step's record.

Rows go to the object store, from where all ranks fetch them. A worker that does not see the folder of the run packs its
part of the record into a file of its own, and the driver fetches that in pieces.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import ray
from ray import ObjectRef, exceptions

from ramet.errors import InfraError
from ramet.policy.advantages import GroupToLearn, LearnedGroup, learn_group, recorded_advantages
from ramet.policy.batching.train_batch import TrainBatch
from ramet.rollout.record import GroupRecord, write_records
from ramet.rollout.scoring import ScoredGroup, Scorer, score_of, scored_before
from ramet.types import AdvantageEstimator, Group, RolloutScore

T = TypeVar("T", TrainBatch, Group)
PIECE = 64 << 20  # bytes of a part that travel at once


class PartLost(InfraError):
    """Rows or groups are no longer in the object store."""


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """The place of a group in its worker."""

    ticket: int
    index: int  # of the group in its ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class PartToLearn:
    """A `GroupToLearn` without its rollouts, for a worker that has them."""

    place: GroupPlace
    number: int
    scores: Mapping[str, RolloutScore]  # by rollout
    greedy: float | None
    reward_weights: Mapping[str, float]

    def group(self, group: Group) -> GroupToLearn:
        return GroupToLearn(
            number=self.number,
            group=scored_group(group, self.scores),
            greedy=self.greedy,
            reward_weights=self.reward_weights,
        )


@dataclass(frozen=True, slots=True)
class LearnedPart:
    """A worker's groups that have rows."""

    batches: ObjectRef[list[TrainBatch]]  # one for each group
    groups: list[LearnedGroup]

    @classmethod
    def of(cls, pairs: Sequence[tuple[TrainBatch, LearnedGroup]]) -> LearnedPart:
        return cls(ray.put([batch for batch, _ in pairs]), [learned for _, learned in pairs])


@dataclass(frozen=True, slots=True, kw_only=True)
class PartGroup:
    """A `GroupRecord` without its rollouts, for a worker that has them."""

    place: GroupPlace
    step: int
    scores: Mapping[str, RolloutScore]  # by rollout
    advantages: Mapping[str, array[float]] | None  # by rollout; None: the worker has made them
    number: int | None
    greedy: tuple[float | None, ...]


class PlayedGroups:
    """The worker's side: the groups that it ran and that are not recorded yet."""

    def __init__(self) -> None:
        self._groups: dict[GroupPlace, Group] = {}
        self._advantages: dict[GroupPlace, Mapping[str, array[float]]] = {}  # by rollout

    def keep(self, ticket: int, groups: Sequence[Group]) -> None:
        self._groups |= {GroupPlace(ticket, index): group for index, group in enumerate(groups)}

    async def score(self, ticket: int, n: int, scorer: Scorer) -> list[dict[str, RolloutScore]]:
        """Return the scores of each of the `n` groups of a ticket, by rollout. Raises as `Scorer.score`.

        Groups are looked up one by one: meanwhile another thread may `write` the groups of another step.
        """
        groups = [self._groups[GroupPlace(ticket, index)] for index in range(n)]
        scored = await asyncio.gather(*map(scorer.score, groups))
        return [scores_of(group) for group in scored]

    def learn(self, estimator: AdvantageEstimator, parts: Sequence[PartToLearn]) -> LearnedPart:
        """Put the rows of these groups into the object store, and keep the advantages for the record. Raises as
        `learn_group`.
        """
        pairs = [learn_group(estimator, part.group(self._groups[part.place])) for part in parts]
        for part, (batch, _) in zip(parts, pairs, strict=True):
            self._advantages[part.place] = recorded_advantages(batch)
        return LearnedPart.of(pairs)

    def write(self, path: Path, parts: Sequence[PartGroup]) -> Path | None:
        """Write a part and forget its groups, which the driver has too. Returns the file from which the driver must
        fetch it, if this node does not see the folder of `path`. Raises `InfraError` without a group's advantages.
        """
        played = [(part, self._groups.pop(part.place), self._advantages.pop(part.place, None)) for part in parts]
        records = [_record(part, group, made) for part, group, made in played]
        if path.parent.is_dir():
            write_records(path, records)
            return None
        folder = Path(tempfile.mkdtemp(prefix="ramet-part-"))
        try:
            write_records(folder / path.name, records)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder / path.name


def _record(part: PartGroup, group: Group, made: Mapping[str, array[float]] | None) -> GroupRecord:
    """Return a group's record. `made`: the advantages that this worker has made. Raises `InfraError` without any."""
    advantages = made if part.advantages is None else part.advantages
    if advantages is None:
        raise InfraError("this worker did not make the advantages of a group")
    return GroupRecord(
        step=part.step,
        group=scored_group(group, part.scores),
        advantages=advantages,
        number=part.number,
        greedy=part.greedy,
    )


def scores_of(group: ScoredGroup) -> dict[str, RolloutScore]:
    return {scored.rollout.id: score_of(scored) for scored in group.rollouts}


def scored_group(group: Group, scores: Mapping[str, RolloutScore]) -> ScoredGroup:
    rollouts = tuple(scored_before(rollout, scores[rollout.id]) for rollout in group.rollouts)
    return ScoredGroup(task=group.task, rollouts=rollouts)


def fetched(parts: Sequence[ObjectRef[list[T]]]) -> list[list[T]]:
    """Return parts from the object store, their arrays as views of it. Raises `PartLost`."""
    try:
        return ray.get(list(parts))
    except exceptions.ObjectLostError as error:
        raise PartLost(f"rows or groups are lost with their worker or node: {type(error).__name__}") from error


def piece(path: Path, offset: int) -> bytes:
    """Return the next bytes of a part; the file is deleted where it has no more."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(PIECE)
    if not data:
        shutil.rmtree(path.parent)
    return data
