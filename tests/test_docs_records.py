"""docs/records.md is true: its tables have every key of a record, and its reader of packed numbers works."""

from __future__ import annotations

import json
import re
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.rollout.record import GroupRecord, record_line
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.types import Origin, Rollout, Segment, SegmentKind, StopReason, Task, ThreadStart, user_prompt

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "records.md").read_text()
TASK = Task(id="t", prompt=user_prompt("1+1?"))
SEGMENT = Segment(
    origin=Origin.SAMPLED, kind=SegmentKind.TURN, turn=0, text="n", token_ids=array("i", [110, 263]), thread=1
)
ROLLOUT = Rollout(
    id="0",
    task=TASK,
    segments=(SEGMENT,),
    stop=StopReason.END,
    fork_reason={"draw": 0.5},
    thread_starts=(ThreadStart(0, 0),),
)


def keys(of: str) -> set[str]:
    table = PAGE.partition(f"| key of a {of} |")[2].partition("\n\n")[0]
    return {key for row in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}


def test_every_key_of_a_record_is_in_its_table() -> None:
    scored = ScoredRollout(rollout=ROLLOUT, reward=1.0, reasons={"math": "right"})
    fork = replace(ROLLOUT, id="0.0", parent="0", fork_turn=1, turn_rewards=(0.5, None), token_rewards={1: 0.5})
    group = ScoredGroup(task=TASK, rollouts=(scored, replace(scored, rollout=fork)))
    line = json.loads(record_line(GroupRecord(step=1, group=group, number=3, greedy=(None,))))
    assert keys("line") == set(line)
    assert keys("segment") == set(line["segments"][0])
    assert keys("rollout") == set(line["rollouts"][1])


def test_the_pages_reader_unpacks_what_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    code = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "def unpack" in block)
    exec(code, {})
    assert capsys.readouterr().out == "[110, 263]\n"
    group = ScoredGroup(task=TASK, rollouts=(ScoredRollout(rollout=ROLLOUT, reward=1.0),))
    assert json.loads(record_line(GroupRecord(step=1, group=group)))["segments"][0]["ids"] in code
