"""Rows of recorded rollouts: what a fork shares is in its parent's rows."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

from ramet.history.rows import call_rows, rollout_row, segment_rows
from ramet.rollout.scoring import ScoredRollout
from ramet.types import (
    CallStatus,
    Fault,
    Origin,
    Rollout,
    Segment,
    SegmentKind,
    StopReason,
    Task,
    ToolRecord,
    user_prompt,
)

PARTS = {"math": 1.0, "format": 0.5}


def segment(kind: SegmentKind, turn: int, *ids: int) -> Segment:
    sampled = kind is SegmentKind.TURN
    values = array("f", [0.5] * len(ids)) if sampled else None
    origin = Origin.SAMPLED if sampled else Origin.INSERTED
    text = "".join(map(str, ids))
    return Segment(
        origin=origin, kind=kind, turn=turn, text=text, token_ids=array("i", ids), logprobs=values, entropies=values
    )


def call(turn: int, status: CallStatus, text: str) -> ToolRecord:
    return ToolRecord(
        turn=turn, name="python", arguments={"code": "1"}, status=status, text=text, wait_s=0.1, run_s=0.2, attempts=1
    )


def parent_and_fork() -> tuple[Rollout, Rollout]:
    task = Task(id="a", prompt=user_prompt("1+1?"), answer=("2",))
    shared = (segment(SegmentKind.PROMPT, 0, 1), segment(SegmentKind.TURN, 0, 2, 3), segment(SegmentKind.RESULT, 0, 4))
    failed, ran = call(0, CallStatus.ERROR, "NameError: x"), call(1, CallStatus.OK, "2")
    parent = Rollout(
        id="0",
        task=task,
        segments=(*shared, segment(SegmentKind.TURN, 1, 5)),
        stop=StopReason.END,
        tool_calls=(failed,),
    )
    fork = Rollout(
        id="0.0", task=task, segments=(*shared, segment(SegmentKind.TURN, 1, 6, 7)), stop=StopReason.ANSWER, answer="2",
        parent="0", fork_turn=1, n_shared=3, fork_reason={"entropy change": 0.1}, tool_calls=(failed, ran),
        stats={"seconds": 2.0},
    )  # fmt: skip
    return parent, fork


def test_a_call_is_in_the_row_of_the_rollout_that_made_it_with_why_it_failed() -> None:
    parent, fork = parent_and_fork()
    rows: list[dict[str, Any]] = [*call_rows(3, parent), *call_rows(3, fork)]
    assert [(row["rollout"], row["turn"], row["failed"], row["reason"]) for row in rows] == [
        ("0", 0, True, "NameError: x"), ("0.0", 1, False, None),
    ]  # fmt: skip
    assert rows[1]["arguments"] == {"code": "1"} and rows[1]["result"] == "2" and rows[1]["seconds"] == 0.2
    assert (rows[1]["step"], rows[1]["task"]) == (3, "a")


def test_segments_have_their_numbers_as_lists_and_shared_ones_are_the_parents() -> None:
    parent, fork = parent_and_fork()
    assert [row["token_ids"] for row in segment_rows(1, parent)] == [[1], [2, 3], [4], [5]]
    (own,) = segment_rows(1, fork)
    assert (own["segment"], own["token_ids"], own["logprobs"], own["origin"]) == (3, [6, 7], [0.5, 0.5], "sampled")
    assert next(segment_rows(1, parent))["logprobs"] is None


def test_a_rollout_is_a_row_with_its_parts_its_end_and_why_it_is_masked() -> None:
    _, fork = parent_and_fork()
    row = rollout_row(2, ScoredRollout(rollout=fork, reward=1.5, parts=PARTS, reasons={"math": "equal"}))
    assert (row["reward"], row["reward/math"], row["reward/format"], row["masked"]) == (1.5, 1.0, 0.5, None)
    assert (row["reason/math"], row["fork_reason/entropy change"]) == ("equal", 0.1)
    assert (row["parent"], row["stop"], row["answer"], row["gold"]) == ("0", "answer", "2", ["2"])
    assert (row["turns"], row["calls"], row["failed_calls"], row["sampled_tokens"]) == (2, 2, 1, 4)
    assert (row["entropy"], row["stats/seconds"]) == (0.5, 2.0)
    masked = replace(fork, fault=Fault(where="tool:python", message="down"))
    assert rollout_row(2, ScoredRollout(rollout=masked, reward=None, parts={}))["masked"] == "tool:python: down"
