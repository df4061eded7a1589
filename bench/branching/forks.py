"""Where a run forked, read from its records: after tool results that leave something to choose, or after others.

The training itself knows nothing of this difference: `TaskKind.certain` tells it from the texts of the results.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from tasks import TaskKind

from ramet import Rollout
from ramet.rollout.branching.metrics import first_of_turn, turns_of
from ramet.rollout.record import read_records
from ramet.rollout.record_files import recorded_files
from ramet.rollout.scoring import ScoredRollout

FIRST_TOKENS = 20  # rollout.first_tokens
CHANGES = (0.03, 0.1, 0.3)  # nats: between them, sorts of forks by how much the entropy had risen


def fork_numbers(run: Path, kind: TaskKind) -> dict[str, Any]:
    """Over the rollouts of all training steps; a share of nothing is 0.

    `choices`: of tool results, those that leave a choice. `forks_at_choices`: of forks after a tool result, those after
    such a one. `rose_at_choices`, `rose_elsewhere`: of the turns after tool results of either sort, those with more
    entropy than the first turn of their root. `same_root_differ`, `other_root_differ`: of the pairs of rollouts of a
    group, with one root or with two, those whose rewards differ. `by_change`: forks after a tool result by the mean
    change of entropy there, as parted by `CHANGES`: how many, and how many whose reward is not their parent's, for each
    third of the steps, since both change while it trains.
    """
    counts: Counter[str] = Counter()
    changes: list[Counter[str]] = [Counter(), Counter(), Counter()]
    files = [file.path for file in recorded_files(run) if file.kind == "step"]
    for step, file in enumerate(files):
        for record in read_records(file):
            rollouts = [one.rollout for one in record.group.rollouts]
            _count_results(rollouts, kind, counts)
            _count_forks(rollouts, kind, counts)
            _count_pairs(record.group.valid, counts)
            _count_changes(record.group.valid, changes[step * 3 // len(files)])
    elsewhere = counts["results"] - counts["choices"]
    return {
        "choices": _share(counts["choices"], counts["results"]),
        "forks_at_choices": _share(counts["forks_at_choices"], counts["forks"]),
        "rose_at_choices": _share(counts["rose_at_choices"], counts["choices"]),
        "rose_elsewhere": _share(counts["rose"] - counts["rose_at_choices"], elsewhere),
        "same_root_differ": _share(counts["same_differ"], counts["same"]),
        "other_root_differ": _share(counts["other_differ"], counts["other"]),
        "by_change": [
            [[third[f"change_{i}"], third[f"change_{i}_differ"]] for i in range(len(CHANGES) + 1)] for third in changes
        ],
    }


def _count_results(rollouts: Sequence[Rollout], kind: TaskKind, counts: Counter[str]) -> None:
    """Each turn after a tool result once, however many rollouts share it."""
    turns = [(rollout, turn[0].turn, first_of_turn(turn, FIRST_TOKENS)) for rollout, turn in turns_of(rollouts)]
    first = {_root(rollout): entropies for rollout, turn, entropies in reversed(turns) if turn == 0}
    for rollout, turn, entropies in turns:
        changes = [now - before for now, before in zip(entropies, first[_root(rollout)], strict=False)]
        if turn > 0 and changes:
            rose, choice = sum(changes) > 0, _is_choice(rollout, turn, kind)
            counts.update(results=1, choices=choice, rose=rose, rose_at_choices=rose and choice)


def _count_forks(rollouts: Sequence[Rollout], kind: TaskKind, counts: Counter[str]) -> None:
    for rollout in rollouts:
        if rollout.fork_turn and not rollout.fork_token:
            counts.update(forks=1, forks_at_choices=_is_choice(rollout, rollout.fork_turn, kind))


def _count_pairs(scored: Sequence[ScoredRollout], counts: Counter[str]) -> None:
    for one, other in combinations(scored, 2):
        pair = "same" if _root(one.rollout) == _root(other.rollout) else "other"
        counts.update({pair: 1, f"{pair}_differ": one.reward != other.reward})


def _count_changes(scored: Sequence[ScoredRollout], counts: Counter[str]) -> None:
    """A fork at the beginning of a turn is known by what its parent sampled there."""
    by_id = {one.rollout.id: one for one in scored}
    for one in scored:
        fork, parent = one.rollout, by_id.get(one.rollout.parent or "")
        if parent is None or not fork.fork_turn or fork.fork_token:
            continue
        first, there = _entropies(parent.rollout, 0), _entropies(parent.rollout, fork.fork_turn)
        changes = [now - before for now, before in zip(there, first, strict=False)]
        if changes:
            name = f"change_{bisect(CHANGES, fmean(changes))}"
            counts.update({name: 1, f"{name}_differ": one.reward != parent.reward})


def _entropies(rollout: Rollout, turn: int) -> list[float]:
    return first_of_turn([part for part in rollout.segments if part.is_sampled and part.turn == turn], FIRST_TOKENS)


def _is_choice(rollout: Rollout, turn: int, kind: TaskKind) -> bool:
    """Whether the tool result right before this turn left a choice."""
    before = [call for call in rollout.tool_calls if call.turn < turn]
    return bool(before) and not kind.certain(before[-1].text, len(before))


def _root(rollout: Rollout) -> str:
    return rollout.id.partition(".")[0]


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0
