"""The recorded rollouts that are in the page: of steps, validations and an evaluation, up to a size.

Steps are the first, the last, and evenly spaced ones between; of an evaluation each benchmark has an equal share.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramet.evaluate.stored import StoredEvaluation
from ramet.report.credit import credit_folder, read_credit
from ramet.report.group_counts import GroupCounts
from ramet.report.tree import Splitter, group_data
from ramet.rollout.record import UNREADABLE, read_records
from ramet.rollout.record_files import FOLDER, RecordedFile, recorded_files

logger = logging.getLogger(__name__)
MOST_COUNTED = 200_000_000  # packed bytes of a run's records that are read only for intervals
EVALUATION = "eval"  # kind of a group; the others are the keys of `_TITLES`
_TITLES = {"step": "Step {step}", "valid": "Validation after step {step}"}  # kind -> how notes begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The rollouts that are shown: `scripts` are the kept ones, safe JSON in order; `notes` name what is left out."""

    scripts: list[str]
    notes: list[str]
    counts: GroupCounts = field(default_factory=GroupCounts)  # of steps and validations


def title(file: RecordedFile) -> str:
    return _TITLES[file.kind].format(step=file.step)


def recorded_counts(run: Path) -> GroupCounts:
    """Count all recorded groups of a run; none of too many bytes. An unreadable file is reported."""
    files, counts = recorded_files(run), GroupCounts()
    if sum(file.n_bytes for file in files) > MOST_COUNTED:
        logger.warning("report: the records of %s are over %d MB: no intervals are drawn", run, MOST_COUNTED // 10**6)
        return counts
    for file in files:
        of_file = GroupCounts()
        try:
            deque(of_file.counted(read_records(file.path), file.kind), maxlen=0)
        except UNREADABLE as error:
            logger.warning("report: %s could not be read: %s", file.path, error)
            continue
        counts.update(of_file)
    return counts


def collect_steps(run: Path, evaluation: StoredEvaluation | None, split: Splitter, *, max_bytes: int) -> Steps:
    """Read the recorded groups until the budget is used up. An unreadable file is noted, not fatal."""
    files = recorded_files(run)
    scripts, notes = [], list[str]()
    if evaluation is not None:
        measured = _collect_evaluation(evaluation, split, max_bytes // 2 if files else max_bytes)
        scripts, notes = measured.scripts, measured.notes
    bytes_left = max_bytes - sum(map(len, scripts))
    played = _collect_files(files, split, bytes_left, read_credit(credit_folder(run)))
    return Steps(scripts=[*played.scripts, *scripts], notes=[*played.notes, *notes], counts=played.counts)


def _collect_files(
    files: Sequence[RecordedFile], split: Splitter, max_bytes: int, credit: Sequence[dict[str, Any]]
) -> Steps:
    kept: dict[int, str] = {}
    notes: list[str] = []
    left_out: list[RecordedFile] = []
    counts = GroupCounts()
    for index in spread(len(files)):
        file, of_file = files[index], GroupCounts()
        try:
            records = enumerate(of_file.counted(read_records(file.path), file.kind))
            measured = credit if file.kind == "step" else ()
            groups = ({**group_data(record, i, split, measured), "kind": file.kind} for i, record in records)
            script, n_left = _script(groups, max_bytes, whole=bool(kept))
        except UNREADABLE as error:
            notes.append(f"{title(file)}: its rollouts could not be read ({type(error).__name__}: {error}).")
            continue
        if script is None:
            left_out.append(file)
            continue
        kept[index] = script
        counts.update(of_file)
        max_bytes -= len(script)
        if n_left:
            notes.append(f"{title(file)}: only its first groups are shown, {n_left} did not fit into this file.")
    scripts = [kept[index] for index in sorted(kept)]
    return Steps(scripts=scripts, notes=[*notes, *_left_out(files, left_out)], counts=counts)


def _left_out(files: Sequence[RecordedFile], left_out: Sequence[RecordedFile]) -> Iterator[str]:
    for kind, word in (("step", "steps"), ("valid", "validations")):
        there, lost = ([file.step for file in listed if file.kind == kind] for listed in (files, left_out))
        if lost:
            yield (
                f"This file holds the rollouts of {len(there) - len(lost)} of {len(there)} {word}; left out for its "
                f"size: {ranges(lost)}. All are in the folder {FOLDER} of the run."
            )


def _collect_evaluation(evaluation: StoredEvaluation, split: Splitter, max_bytes: int) -> Steps:
    """One script per benchmark. `asked` of a rollout is what judges were asked for it."""
    results = {result["name"]: result for result in evaluation.body["results"]}
    scripts: list[str] = []
    notes: list[str] = []
    n_left, index = len(results), itertools.count()
    try:
        for name, records in itertools.groupby(evaluation.records(), key=lambda pair: pair[0]):
            tasks = {task["task"]: task for task in results[name]["tasks"]}
            groups = (
                _with_judges({**group_data(record, next(index), split), "kind": EVALUATION, "benchmark": name}, tasks)
                for _, record in records
            )
            script, n_cut = _script(groups, max_bytes // n_left, whole=False)
            assert script is not None  # only complete scripts may be left out
            scripts.append(script)
            max_bytes, n_left = max_bytes - len(script), n_left - 1
            if n_cut:
                notes.append(f"{name}: only its first tasks are shown, {n_cut} did not fit into this file.")
    except UNREADABLE as error:
        notes.append(f"Rollouts of the evaluation could not be read ({type(error).__name__}: {error}).")
    return Steps(scripts=scripts, notes=notes)


def _with_judges(group: dict[str, Any], tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    asked = {rollout["id"]: rollout.get("asked") for rollout in tasks[group["task"]]["rollouts"]}
    return {
        **group,
        "rollouts": [{**rollout, "asked": asked.get(rollout["id"]) or []} for rollout in group["rollouts"]],
    }


def _script(groups: Iterable[dict[str, Any]], max_bytes: int, *, whole: bool) -> tuple[str | None, int]:
    """Groups as a JSON list, and how many were left out; None if they do not fit and `whole` is asked."""
    kept: list[str] = []
    size, n_left_out = 2, 0
    for data in groups:
        if n_left_out:
            n_left_out += 1
            continue
        group = safe_json(data)
        size += len(group) + 1
        if size <= max_bytes:
            kept.append(group)
        elif whole:
            return None, 0
        else:
            n_left_out = 1
    return f"[{','.join(kept)}]", n_left_out


def spread(n: int) -> Iterator[int]:
    """All of `range(n)`, in an order of which every beginning is about evenly spaced: first, last, middle, quarters…"""
    if n > 0:
        yield 0
    if n > 1:
        yield n - 1
    gaps = deque([(0, n - 1)])
    while gaps:
        low, high = gaps.popleft()
        if high - low > 1:
            middle = (low + high) // 2
            yield middle
            gaps.extend([(low, middle), (middle, high)])


def ranges(numbers: Sequence[int]) -> str:
    """`[1, 2, 3, 7]` as `1-3, 7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def safe_json(value: object) -> str:
    """ASCII JSON that cannot end its script element or open another one."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
