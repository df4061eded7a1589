"""The groups of a step, each in the worker that ran it: rows with advantages, and the record.

The driver sends rewards, or has got them from the worker. It does the work of workers that are lost, or have a full
disk: it has all groups, or a reference to each in the object store of the node that ran it. Groups that are lost with
their node when a step has all of its groups are masked.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ray import ObjectRef

from ramet.cluster.ray.actors import RolloutActor
from ramet.cluster.ray.played_groups import (
    GroupPlace,
    LearnedPart,
    PartGroup,
    PartLost,
    PartToLearn,
    fetched,
    scored_group,
    scores_of,
)
from ramet.cluster.ray.worker import RayWorker
from ramet.cluster.ray.worker_pool import run_together
from ramet.errors import InfraError
from ramet.io import repeats
from ramet.io.atomic import open_atomic, temporary_folder
from ramet.policy.advantages import GroupToLearn, LearnedGroup, learn_group, recorded_advantages
from ramet.policy.batching.train_batch import TrainBatch
from ramet.rollout.record import GroupRecord, part_path, write_records
from ramet.rollout.record_files import publish_parts, write_index
from ramet.rollout.scoring import ScoredGroup
from ramet.types import AdvantageEstimator, Fault, Group, Rollout

logger = logging.getLogger(__name__)


GroupStore = ObjectRef[list[Group]]
LOST = Fault(where="node", message="the node that ran it is lost, and its tokens with it")
TRAINED = Fault(where="node", message="the update has used it; its tokens are lost with the node that ran it")


@dataclass(frozen=True, slots=True)
class _Played:
    """A group that a worker has, too."""

    worker: RayWorker
    place: GroupPlace
    group: Group  # so that the identity of its `stats` stays its own
    store: GroupStore | None  # of the complete groups of its ticket; None: the driver has them


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A group's record, and what is noted of the group."""

    record: GroupRecord  # without advantages where those were made by `learn`
    played: _Played | None
    learned: tuple[AdvantageEstimator, GroupToLearn] | None

    def complete(self, group: ScoredGroup | None) -> GroupRecord:
        """Return the record of the complete group with advantages, which are made again if they are not here; None: the
        group is lost.
        """
        if group is None:
            fault = LOST if self.learned is None else TRAINED
            return replace(self.record, group=_masked(self.record.group, fault), advantages={})
        if self.learned is None:
            return replace(self.record, group=group)
        estimator, to_learn = self.learned
        batch, _ = learn_group(estimator, replace(to_learn, group=group))
        return replace(self.record, group=group, advantages=recorded_advantages(batch))


class GroupParts:
    """The driver's side: which worker has which group, and what each does with its groups."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._tickets = itertools.count()
        self._played: dict[int, _Played] = {}  # by `_identity`
        self._learned: dict[int, tuple[AdvantageEstimator, GroupToLearn]] = {}  # by `_identity`, until the record

    def next_ticket(self) -> int:
        return next(self._tickets)

    def note(self, worker: RayWorker, ticket: int, groups: Sequence[Group], store: GroupStore | None) -> None:
        """Note that `worker` has these groups, and where they are complete; None: here."""
        for index, group in enumerate(groups):
            if (identity := _identity(group.rollouts)) is not None:
                self._played[identity] = _Played(worker, GroupPlace(ticket, index), group, store)

    async def are_lost(self, groups: Sequence[Group], working: Collection[RayWorker]) -> bool:
        """Whether groups of a worker that is not among the `working` ones are lost with its node, so that they must be
        run again.
        """
        played = {identity: self._played.get(identity) for group in groups if (identity := _identity(group.rollouts))}
        stores = {one.store for one in played.values() if one is not None and one.worker not in working}
        lost = [await asyncio.to_thread(_stored, store) is None for store in stores if store is not None]
        for identity in played if any(lost) else ():
            self._played.pop(identity, None)
        return any(lost)

    async def learn(
        self, estimator: AdvantageEstimator, groups: Sequence[GroupToLearn]
    ) -> tuple[tuple[ObjectRef[list[TrainBatch]], ...], list[LearnedGroup]]:
        """Let each worker make rows and advantages of its groups. Returns the rows, one object for each worker, and an
        entry for each group. Raises as `learn_group`.
        """
        by_worker = defaultdict[RayWorker | None, list[int]](list)
        played = [self._played.get(_identity_of(group)) for group in groups]
        for i, known in enumerate(played):
            by_worker[None if known is None else known.worker].append(i)
        batches: list[ObjectRef[list[TrainBatch]]] = []
        learned: dict[int, LearnedGroup] = {}

        async def learn_part(worker: RayWorker | None, indices: Sequence[int]) -> None:
            part = await self._learn_part(estimator, worker, [(played[i], groups[i]) for i in indices])
            batches.append(part.batches)
            learned.update(zip(indices, part.groups, strict=True))

        await run_together(*(learn_part(worker, indices) for worker, indices in by_worker.items()))
        in_order = [learned[i] for i in range(len(groups))]
        self._note_learned(estimator, groups, in_order)
        return tuple(batches), in_order

    def _note_learned(
        self, estimator: AdvantageEstimator, groups: Sequence[GroupToLearn], learned: Sequence[LearnedGroup]
    ) -> None:
        """Note that the record of groups with rows has advantages."""
        for group, own in zip(groups, learned, strict=True):
            if own.n_rows:
                self._learned[_identity_of(group)] = estimator, group
            else:
                self._learned.pop(_identity_of(group), None)

    async def _learn_part(
        self,
        estimator: AdvantageEstimator,
        worker: RayWorker | None,
        groups: Sequence[tuple[_Played | None, GroupToLearn]],
    ) -> LearnedPart:
        if worker is not None:
            sent = [to_learn(played.place, group) for played, group in groups if played is not None]
            try:
                return await worker.call(self._timeout_s, RolloutActor.learn_groups, sent)
            except InfraError as error:  # it is lost or stuck
                message = "%s did not make its rows (%s: %s): the driver makes them"
                repeats.warn(logger, "a worker's rows", message, worker, type(error).__name__, error, by_step=True)
        return await asyncio.to_thread(_learn_here, estimator, groups)

    async def learn_here(self, estimator: AdvantageEstimator, groups: Sequence[GroupToLearn]) -> LearnedPart:
        """Do in the driver what `learn` does. Raises as `learn_group`."""
        played = [self._played.get(_identity_of(group)) for group in groups]
        part = await asyncio.to_thread(_learn_here, estimator, list(zip(played, groups, strict=True)))
        self._note_learned(estimator, groups, part.groups)
        return part

    async def write(self, path: Path, records: Sequence[GroupRecord]) -> None:
        """Write the record of a step to the folder `path`, which appears complete or not at all. The advantages of
        groups that were given to `learn` are added.
        """
        recorded = [self._recorded(record) for record in records]
        by_worker = defaultdict[RayWorker | None, list[int]](list)
        for i, group in enumerate(recorded):
            by_worker[None if group.played is None else group.played.worker].append(i)
        folder = await asyncio.to_thread(temporary_folder, path)
        try:
            parts = list(enumerate(by_worker.items()))
            await run_together(
                *(
                    self._write_part(part_path(folder, number), worker, [recorded[i] for i in indices])
                    for number, (worker, indices) in parts
                )
            )
            part_of = {i: number for number, (_, indices) in parts for i in indices}
            await asyncio.to_thread(write_index, folder, [part_of[i] for i in range(len(records))])
            await asyncio.to_thread(publish_parts, folder, path)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _recorded(self, record: GroupRecord) -> _Recorded:
        """Return a group's record with what is noted of it, and forget that."""
        identity = _identity([scored.rollout for scored in record.group.rollouts])
        if identity is None:
            return _Recorded(record, None, None)
        return _Recorded(record, self._played.pop(identity, None), self._learned.pop(identity, None))

    async def _write_part(self, path: Path, worker: RayWorker | None, groups: Sequence[_Recorded]) -> None:
        if worker is not None:
            sent = [
                to_record(group.played.place, group.record, made=group.learned is not None)
                for group in groups
                if group.played is not None
            ]
            try:
                elsewhere = await worker.call(self._timeout_s, RolloutActor.write_part, path, sent)
                if elsewhere is not None:
                    await self._fetch(worker, elsewhere, path)
                return
            except (InfraError, OSError) as error:  # it is lost, stuck, or cannot write; the driver has its groups too
                message = "%s did not write its part of the record (%s: %s): the driver writes it"
                repeats.warn(logger, "a part of a record", message, worker, type(error).__name__, error, by_step=True)
        await asyncio.to_thread(_write_here, path, groups)

    async def _fetch(self, worker: RayWorker, source: Path, path: Path) -> None:
        with open_atomic(path) as file:
            while data := await worker.call(self._timeout_s, RolloutActor.part_piece, source, file.tell()):
                await asyncio.to_thread(file.write, data)


def _learn_here(estimator: AdvantageEstimator, groups: Sequence[tuple[_Played | None, GroupToLearn]]) -> LearnedPart:
    """Do the work of a worker in the driver. A group that is lost has no rows. Raises as `learn_group`."""
    complete = _complete([(played, group.group) for played, group in groups])
    pairs = [
        None if one is None else learn_group(estimator, replace(group, group=one))
        for one, (_, group) in zip(complete, groups, strict=True)
    ]
    part = LearnedPart.of([pair for pair in pairs if pair is not None])
    return replace(part, groups=[LearnedGroup.none() if pair is None else pair[1] for pair in pairs])


def _write_here(path: Path, groups: Sequence[_Recorded]) -> None:
    """Write the part of a worker in the driver."""
    complete = _complete([(group.played, group.record.group) for group in groups])
    write_records(path, (group.complete(one) for group, one in zip(groups, complete, strict=True)))


def _complete(groups: Sequence[tuple[_Played | None, ScoredGroup]]) -> list[ScoredGroup | None]:
    """Return the groups with their tokens, which are fetched where the driver lacks them; None: they are lost."""
    stores = {played.store for played, _ in groups if played is not None and played.store is not None}
    stored = {store: _stored(store) for store in stores}
    complete: list[ScoredGroup | None] = []
    for played, group in groups:
        if played is None or played.store is None:
            complete.append(group)
        else:
            found = stored[played.store]
            complete.append(None if found is None else scored_group(found[played.place.index], scores_of(group)))
    return complete


def _stored(store: GroupStore) -> list[Group] | None:
    try:
        [groups] = fetched([store])
    except PartLost as error:
        repeats.warn(logger, "groups are lost", "%s", error, by_step=True)
        return None
    return groups


def _masked(group: ScoredGroup, fault: Fault) -> ScoredGroup:
    """Return a group of whose rollouts none is valid, with the parts of their scores and the reasons."""
    rollouts = tuple(
        replace(one, rollout=replace(one.rollout, fault=one.rollout.fault or fault), reward=None, token_rewards={})
        for one in group.rollouts
    )
    return replace(group, rollouts=rollouts)


def _identity(rollouts: Sequence[Rollout]) -> int | None:
    """Return the identity of the `stats` of a group's first rollout, which scoring keeps; None: it has no rollout."""
    return id(rollouts[0].stats) if rollouts else None


def _identity_of(group: GroupToLearn) -> int:
    identity = _identity([scored.rollout for scored in group.group.rollouts])
    assert identity is not None  # it has rows
    return identity


def to_learn(place: GroupPlace, group: GroupToLearn) -> PartToLearn:
    """Return what the worker is sent that has the group."""
    return PartToLearn(
        place=place,
        number=group.number,
        scores=scores_of(group.group),
        greedy=group.greedy,
        reward_weights=group.reward_weights,
    )


def to_record(place: GroupPlace, record: GroupRecord, *, made: bool) -> PartGroup:
    """Return what the worker is sent that has the group. `made`: it has made the advantages."""
    return PartGroup(
        place=place,
        step=record.step,
        scores=scores_of(record.group),
        advantages=None if made else record.advantages,
        number=record.number,
        greedy=record.greedy,
    )
