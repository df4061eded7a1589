from __future__ import annotations

import dataclasses
import gzip
import json
import logging
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramet.config.schema import ToolConfig
from ramet.errors import ConfigError
from ramet.rollout import record
from ramet.rollout.branching.builtin import RandomBranching
from ramet.rollout.config import RandomBranchConfig
from ramet.rollout.record import INDEX, GroupRecord, part_path, read_records, write_records
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.testing.doubles import Reply, echo_tool
from ramet.types import Message, Task, ToolCall

Play = Callable[..., Any]


@pytest.fixture
def played(play: Play) -> list[GroupRecord]:
    """Two groups with forks, a fault, rewards, token rewards and advantages."""

    def script(task: str, path: str, turn: int) -> Reply:
        text = f"<python>{path}</python>" if turn < 2 else "<answer>2 \u00e4 \U0001f600</answer>"
        return Reply(text=text, entropies=(0.1, 1 / 3))

    def fail(call: ToolCall) -> float:
        if call.arguments["text"] == "1":
            raise RuntimeError("outage")
        return 0.0

    metadata = {"nested": {"a": [1, 2.5, None]}, "text": "\ud800 </script>"}
    prompt = (Message(role="system", content="s"), Message(role="user", content="q"))
    tasks = [Task(id=f"t/{i}", prompt=prompt, answer=("2", "two"), metadata=metadata) for i in range(2)]
    groups = play(
        script,
        tasks=tasks,
        tools={"python": (echo_tool(delay_s=fail), ToolConfig(retries=0))},
        policy=RandomBranching(RandomBranchConfig(initial_rollouts=2, probability=0.9)),
        group_size=5,
    ).groups
    return [GroupRecord(step=12, group=_scored(group), advantages=_advantages(group)) for group in groups]


def test_what_a_failed_call_quotes_shows_no_key(play: Play, tmp_path: Path) -> None:
    def fail(call: ToolCall) -> float:
        raise RuntimeError("401 for https://api.example.org/?api_key=0123456789abcdef")

    tools = {"python": (echo_tool(delay_s=fail), ToolConfig(retries=0))}
    [group] = play(lambda *of: Reply(text="<python>1</python>"), tools=tools).groups
    path = tmp_path / "step_000001.jsonl.gz"
    write_records(path, [GroupRecord(step=1, group=_scored(group))])
    text = gzip.decompress(path.read_bytes()).decode()
    assert text.count("https://api.example.org/?api_key=***") == 2 * len(group.rollouts)  # the fault and the call
    assert "0123456789abcdef" not in text


def _scored(group: Any) -> ScoredGroup:
    rows = [
        ScoredRollout(rollout=r, reward=0.1 * i, parts={"math": 1.0, "math/x": 1e-9}, token_rewards={3: 0.25})
        if r.valid
        else ScoredRollout(rollout=r, reward=None)
        for i, r in enumerate(group.rollouts)
    ]
    return ScoredGroup(task=group.task, rollouts=tuple(rows))


def _advantages(group: Any) -> dict[str, Any]:
    return {r.id: array("f", [0.1 * k for k in range(r.n_response_tokens)]) for r in group.valid}


def test_what_is_read_equals_what_was_written(played: list[GroupRecord], tmp_path: Path) -> None:
    path = tmp_path / "rollouts" / "step_000012.jsonl.gz"
    write_records(path, played)
    assert list(read_records(path)) == played
    assert any(not s.rollout.valid for r in played for s in r.group.rollouts)
    assert any(s.rollout.parent for r in played for s in r.group.rollouts)


def test_what_turns_gave_and_why_forks_rewards_and_a_left_out_rollout_are_as_they_are_is_kept(
    played: list[GroupRecord], tmp_path: Path
) -> None:
    group = played[0].group
    last = dataclasses.replace(
        group.rollouts[-1].rollout,
        infos=({}, {"board": [1, None]}),
        turn_rewards=(None, 0.25),
        left_out="overlong",
        fork_reason={"entropy change": 0.125},
    )
    explained = dataclasses.replace(group.rollouts[-1], rollout=last, reasons={"math": "there is no answer"})
    scored = (*group.rollouts[:-1], explained)
    record = dataclasses.replace(played[0], group=dataclasses.replace(group, rollouts=scored))
    write_records(tmp_path / "r.jsonl.gz", [record])
    assert list(read_records(tmp_path / "r.jsonl.gz")) == [record]


def test_the_number_of_a_group_and_its_greedy_reward_are_kept_and_absent_where_there_are_none(
    played: list[GroupRecord], tmp_path: Path
) -> None:
    path, record = tmp_path / "r.jsonl.gz", played[0]
    numbered = [dataclasses.replace(record, number=7, greedy=greedy) for greedy in ((0.5,), (None,), ())]
    write_records(path, [*numbered, record])
    assert [(one.number, one.greedy) for one in read_records(path)] == [(7, (0.5,)), (7, (None,)), (7, ()), (None, ())]
    lines = [json.loads(line) for line in gzip.open(path)]
    assert [{"number", "greedy"} & line.keys() for line in lines] == [
        {"number", "greedy"}, {"number", "greedy"}, {"number"}, set()
    ]  # fmt: skip


def test_shared_segments_and_tool_calls_are_written_once_and_shared_again(
    played: list[GroupRecord], tmp_path: Path
) -> None:
    path = tmp_path / "r.jsonl.gz"
    write_records(path, played)
    line = json.loads(gzip.open(path).readline())
    rollouts = [s.rollout for s in played[0].group.rollouts]
    assert len(line["segments"]) == len({id(s) for r in rollouts for s in r.segments})
    assert sum(len(r["tool_calls"]) for r in line["rollouts"]) == len({id(c) for r in rollouts for c in r.tool_calls})
    again = {s.rollout.id: s.rollout for s in next(read_records(path)).group.rollouts}
    fork = next(r for r in again.values() if r.parent)
    shared = zip(fork.segments[: fork.n_shared], again[fork.parent].segments, strict=False)
    assert all(a is b for a, b in shared)
    assert fork.tool_calls[0] is again[fork.parent].tool_calls[0]


def test_a_line_holds_masks_and_arrays_as_base64(played: list[GroupRecord], tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    write_records(path, played)
    line = json.loads(gzip.open(path).readline())
    assert (line["schema"], line["step"], line["task"]["id"]) == (2, 12, "t/0")
    assert [(s["kind"], s["mask"]) for s in line["segments"][:3]] == [("prompt", 0), ("turn", 1), ("result", 0)]
    assert isinstance(line["segments"][1]["ids"], str)
    assert line["segments"][0]["logprobs"] is None


def test_the_same_records_give_the_same_bytes_and_no_temporary_file(played: list[GroupRecord], tmp_path: Path) -> None:
    one, two = tmp_path / "one.jsonl.gz", tmp_path / "two.jsonl.gz"
    write_records(one, played)
    write_records(two, played)
    assert one.read_bytes() == two.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.jsonl.gz", "two.jsonl.gz"]


def test_a_failed_write_leaves_the_old_file(played: list[GroupRecord], tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    write_records(path, played)
    before = path.read_bytes()
    broken = dataclasses.replace(played[0], step=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        write_records(path, [played[1], broken])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["r.jsonl.gz"]


def test_evaluation_has_no_advantages(played: list[GroupRecord], tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    write_records(path, [dataclasses.replace(played[0], advantages={})])
    assert next(read_records(path)).advantages == {}


def test_a_torn_file_gives_its_whole_lines_and_is_reported(
    played: list[GroupRecord], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.jsonl.gz"
    write_records(path, played * 20)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 3 // 4])
    with caplog.at_level(logging.WARNING):
        found = list(read_records(path))
    assert 0 < len(found) < 40
    assert found[0] == played[0]
    assert "torn" in caplog.text


def test_a_torn_last_line_is_reported_and_left_out(
    played: list[GroupRecord], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.jsonl.gz"
    write_records(path, played)
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(text[:-50]))
    with caplog.at_level(logging.WARNING):
        assert list(read_records(path)) == played[:1]
    assert "line 2" in caplog.text


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(played: list[GroupRecord], tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(gzip.compress(b"{oops\n{}\n"))
    with pytest.raises(ConfigError, match="line 1: not JSON"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'"text"', "AttributeError: 'str' object has no attribute 'get'"),
        (b'{"schema": 2}', "KeyError: 'task'"),
        (b"[1]", "AttributeError: 'list' object has no attribute 'get'"),
    ],
)
def test_a_line_of_something_else_is_an_error_that_names_it(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(gzip.compress(line + b"\n"))
    with pytest.raises(ConfigError) as caught:
        list(read_records(path))
    assert str(caught.value) == f"{path}, line 1: no record of a group: {reason}"


def packed(path: Path, data: bytes) -> Path:
    with gzip.open(path, "wb") as file:
        file.write(data)
    return path


def test_a_file_that_unpacks_to_far_more_than_it_is_stops_before_the_memory_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "LINE_BYTES", 1 << 20)
    path = packed(tmp_path / "step_000001.jsonl.gz", b'{"schema": 1, "text": "' + b"a" * (50 << 20))
    with pytest.raises(ConfigError) as caught:
        list(read_records(path))
    assert str(caught.value) == (
        f"{path}, line 1: unpacks to more than {1 << 20} bytes, from a file of {path.stat().st_size}: damaged, or made "
        "to fill the memory"
    )


def test_a_file_of_too_many_lines_is_given_up(
    played: list[GroupRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "FILE_BYTES", 0)
    monkeypatch.setattr(record, "FILE_RATIO", 2)
    write_records(tmp_path / "one.jsonl.gz", played)
    path = packed(tmp_path / "many.jsonl.gz", gzip.decompress((tmp_path / "one.jsonl.gz").read_bytes()) * 50)
    size = path.stat().st_size
    with pytest.raises(ConfigError, match=rf"^{path}: unpacks to more than {2 * size} bytes, from a file of {size}: "):
        list(read_records(path))


def test_a_line_nested_without_end_is_broken(tmp_path: Path) -> None:
    path = packed(tmp_path / "step_000001.jsonl.gz", b"[" * 100_000 + b"\n{}\n")
    with pytest.raises(ConfigError) as caught:
        list(read_records(path))
    assert str(caught.value).startswith(f"{path}, line 1: not JSON: maximum recursion depth exceeded")


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ("[" * 100_000, "index.json: no index of a record: RecursionError"),
        ('{"parts": [Infinity]}', "index.json: no index of a record: OverflowError"),
        ('{"parts": 0}', "index.json: no index of a record: TypeError"),
        ('{"parts": [1]}', "no rollout file .*part_001"),
        ('{"parts": [0, 0, 0, 0]}', "part_000.jsonl.gz: ends before group 3 of the step"),
    ],
    ids=["nested", "infinity", "number", "missing_part", "short_part"],
)
def test_parts_whose_index_is_broken_or_says_more_than_they_have_are_errors(
    played: list[GroupRecord], tmp_path: Path, index: str, reason: str
) -> None:
    write_records(part_path(tmp_path, 0), [played[0]] * 3)
    (tmp_path / INDEX).write_text(index)
    with pytest.raises(ConfigError, match=reason):
        list(read_records(tmp_path))


def test_another_schema_and_a_missing_file_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"schema": 99}\n'))
    with pytest.raises(ConfigError, match="rollout schema 99; this ramet reads 2"):
        list(read_records(path))
    with pytest.raises(ConfigError, match="no rollout file"):
        list(read_records(tmp_path / "nothing.jsonl.gz"))
