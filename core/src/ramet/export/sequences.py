"""The token sequences on which an exported model is compared with what it was made from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ramet.rollout.record import read_records
from ramet.types import Rollout

COUNT = 4
LONGEST = 2048  # tokens; what lies behind is cut off, which changes nothing of what lies before
RANDOM = 64  # tokens of a made-up sequence
FILE = re.compile(r"step_(\d{6,})\.jsonl\.gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSequence:
    ids: list[int]
    sampled: list[int]  # positions of the tokens whose log-probabilities are compared; never 0


def recorded_sequences(run: Path, step: int) -> list[SampleSequence]:
    """A few rollouts of the last step up to `step` that has some; empty if the run kept none."""
    files = {int(found[1]): path for path in (run / "rollouts").glob("*") if (found := FILE.fullmatch(path.name))}
    for number in sorted((number for number in files if number <= step), reverse=True):
        rollouts = (scored.rollout for record in read_records(files[number]) for scored in record.group.rollouts)
        usable = [one for one in map(_sequence, rollouts) if one.sampled]
        if usable:
            return usable[:: max(1, len(usable) // COUNT)][:COUNT]
    return []


def random_sequences(vocab_size: int) -> list[SampleSequence]:
    """The same ones for the same vocabulary."""
    rng = Random(0)
    return [
        SampleSequence(ids=[rng.randrange(vocab_size) for _ in range(RANDOM)], sampled=list(range(1, RANDOM)))
        for _ in range(COUNT)
    ]


def _sequence(rollout: Rollout) -> SampleSequence:
    ids: list[int] = []
    sampled: list[int] = []
    for segment in rollout.segments:
        if segment.is_sampled:
            sampled.extend(range(len(ids), len(ids) + len(segment)))
        ids.extend(segment.token_ids)
    return SampleSequence(ids=ids[:LONGEST], sampled=[position for position in sampled if 0 < position < LONGEST])
