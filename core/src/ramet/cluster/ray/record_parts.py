"""The record of a step, written by the workers that ran its groups, while the policy learns.

The driver sends rewards and advantages, and writes the groups of workers that are lost or have a full disk.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ramet.cluster.ray.actors import RolloutActor
from ramet.cluster.ray.played_groups import PartGroup
from ramet.cluster.ray.worker import RayWorker
from ramet.cluster.ray.worker_pool import run_together
from ramet.errors import InfraError
from ramet.io import repeats
from ramet.io.atomic import open_atomic, temporary_folder
from ramet.rollout.record import GroupRecord, part_path, write_records
from ramet.rollout.record_files import publish_parts, write_index
from ramet.rollout.scoring import score_of
from ramet.types import Group

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Place:
    worker: RayWorker
    ticket: int
    index: int
    group: Group  # so that the identity of its segments stays its own


class RecordParts:
    """The driver's side: which worker has which group, and the writing of a step."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._tickets = itertools.count()
        self._places: dict[int, _Place] = {}  # by identity of the first rollout's segments, which scoring keeps

    def next_ticket(self) -> int:
        return next(self._tickets)

    def note(self, worker: RayWorker, ticket: int, groups: Sequence[Group]) -> None:
        """Note that `worker` has these groups."""
        for index, group in enumerate(groups):
            if group.rollouts and group.rollouts[0].segments:
                self._places[id(group.rollouts[0].segments)] = _Place(worker, ticket, index, group)

    async def write(self, path: Path, records: Sequence[GroupRecord]) -> None:
        """Write the record of a step to the folder `path`, which appears complete or not at all."""
        by_worker = defaultdict[RayWorker | None, list[int]](list)
        places = [self._place(record) for record in records]
        for i, place in enumerate(places):
            by_worker[None if place is None else place.worker].append(i)
        folder = await asyncio.to_thread(temporary_folder, path)
        try:
            parts = list(enumerate(by_worker.items()))
            await run_together(
                *(
                    self._write_part(part_path(folder, number), worker, [(places[i], records[i]) for i in indices])
                    for number, (worker, indices) in parts
                )
            )
            part_of = {i: number for number, (_, indices) in parts for i in indices}
            await asyncio.to_thread(write_index, folder, [part_of[i] for i in range(len(records))])
            await asyncio.to_thread(publish_parts, folder, path)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _place(self, record: GroupRecord) -> _Place | None:
        rollouts = record.group.rollouts
        return self._places.pop(id(rollouts[0].rollout.segments), None) if rollouts else None

    async def _write_part(
        self, path: Path, worker: RayWorker | None, groups: Sequence[tuple[_Place | None, GroupRecord]]
    ) -> None:
        sent = [_sent(place, record) for place, record in groups if place is not None]
        if worker is not None:
            try:
                elsewhere = await worker.call(self._timeout_s, RolloutActor.write_part, path, sent)
                if elsewhere is not None:
                    await self._fetch(worker, elsewhere, path)
                return
            except (InfraError, OSError) as error:  # it is lost, stuck, or cannot write; the driver has its groups too
                message = "%s did not write its part of the record (%s: %s): the driver writes it"
                repeats.warn(logger, "a part of a record", message, worker, type(error).__name__, error, by_step=True)
        await asyncio.to_thread(write_records, path, [record for _, record in groups])

    async def _fetch(self, worker: RayWorker, source: Path, path: Path) -> None:
        with open_atomic(path) as file:
            while data := await worker.call(self._timeout_s, RolloutActor.part_piece, source, file.tell()):
                await asyncio.to_thread(file.write, data)


def _sent(place: _Place, record: GroupRecord) -> PartGroup:
    return PartGroup(
        ticket=place.ticket,
        index=place.index,
        step=record.step,
        scores={scored.rollout.id: score_of(scored) for scored in record.group.rollouts},
        advantages=record.advantages,
        number=record.number,
        greedy=record.greedy,
    )
