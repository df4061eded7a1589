"""A worker's groups until they are recorded, and its part of a step's record.

A worker that does not see the folder of the run packs its part into a file of its own, and the driver fetches that in
pieces.
"""

from __future__ import annotations

import shutil
import tempfile
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ramet.rollout.record import GroupRecord, write_records
from ramet.rollout.scoring import ScoredGroup, scored_before
from ramet.types import Group, RolloutScore

PIECE = 64 << 20  # bytes of a part that travel at once


@dataclass(frozen=True, slots=True, kw_only=True)
class PartGroup:
    """A `GroupRecord` without its rollouts, for a worker that has them."""

    ticket: int
    index: int  # of the group in its ticket
    step: int
    scores: Mapping[str, RolloutScore]  # by rollout
    advantages: Mapping[str, array[float]]
    number: int | None
    greedy: tuple[float | None, ...]

    def record(self, group: Group) -> GroupRecord:
        rollouts = tuple(scored_before(rollout, self.scores[rollout.id]) for rollout in group.rollouts)
        return GroupRecord(
            step=self.step,
            group=ScoredGroup(task=group.task, rollouts=rollouts),
            advantages=self.advantages,
            number=self.number,
            greedy=self.greedy,
        )


class PlayedGroups:
    """The worker's side: the groups that it ran and that are not recorded yet."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, int], Group] = {}  # by ticket and index

    def keep(self, ticket: int, groups: Sequence[Group]) -> None:
        self._groups |= {(ticket, index): group for index, group in enumerate(groups)}

    def write(self, path: Path, parts: Sequence[PartGroup]) -> Path | None:
        """Write a part and forget its groups, which the driver has too. Returns the file from which the driver must
        fetch it, if this node does not see the folder of `path`.
        """
        records = [part.record(self._groups.pop((part.ticket, part.index))) for part in parts]
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


def piece(path: Path, offset: int) -> bytes:
    """Return the next bytes of a part; the file is deleted where it has no more."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(PIECE)
    if not data:
        shutil.rmtree(path.parent)
    return data
