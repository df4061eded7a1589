from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramet.report.tree import TokenizerSplitter, find_splitter, group_data, no_splitter
from ramet.rollout.record import GroupRecord, read_records
from ramet.rollout.record_files import recorded_files
from ramet.types import Origin, Segment, SegmentKind


@pytest.fixture
def group(run: Path) -> GroupRecord:
    return next(read_records(recorded_files(run)[0].path))


def rollouts(record: GroupRecord) -> dict[str, Any]:
    return {one["id"]: one for one in group_data(record, 0, no_splitter)["rollouts"]}


def test_every_segment_stands_once_at_the_rollout_that_owns_it(group: GroupRecord) -> None:
    found = rollouts(group)
    distinct = {id(s) for scored in group.group.rollouts for s in scored.rollout.segments}
    assert 1 + sum(len(one["segments"]) for one in found.values()) == len(distinct)  # the prompt is no rollout's
    assert [s["kind"] for s in found["0"]["segments"]] == ["turn", "result", "turn"]
    assert [s["kind"] for s in found["0.0"]["segments"]] == ["turn", "result", "turn"]
    assert [s["kind"] for s in found["0.0.0"]["segments"]] == ["turn", "forced"]


def test_forks_hang_where_they_leave_their_owner(group: GroupRecord) -> None:
    found = rollouts(group)
    assert {id: one["at"] for id, one in found.items()} == {
        "0": None,
        "0.0": ["0", 2],
        "0.0.0": ["0.0", 2],
        "0.1": ["0", 2],
        "1": None,
    }


def test_a_fork_in_front_of_its_parents_own_part_hangs_at_the_ancestor(group: GroupRecord) -> None:
    early = [
        replace(s, rollout=replace(s.rollout, n_shared=3, fork_turn=1)) if s.rollout.id == "0.0.0" else s
        for s in group.group.rollouts
    ]
    found = rollouts(replace(group, group=replace(group.group, rollouts=tuple(early))))
    assert found["0.0.0"]["at"] == ["0", 2]


def test_a_fork_whose_parent_is_missing_is_shown_whole(group: GroupRecord) -> None:
    alone = tuple(s for s in group.group.rollouts if s.rollout.id == "0.1")
    found = rollouts(replace(group, group=replace(group.group, rollouts=alone)))["0.1"]
    assert (found["at"], [s["kind"] for s in found["segments"]]) == (None, ["turn", "result", "turn"])
    assert [call["status"] for call in found["segments"][1]["calls"]] == ["ok"]


def test_a_call_stands_at_the_result_of_its_turn_and_once(group: GroupRecord) -> None:
    found = rollouts(group)
    texts = {id: [len(s.get("calls", [])) for s in one["segments"]] for id, one in found.items()}
    assert texts == {"0": [0, 1, 0], "0.0": [0, 1, 0], "0.0.0": [0, 0], "0.1": [0], "1": [0]}
    assert [call["status"] for call in found["1"]["calls"]] == ["infra"]


def test_what_the_rollout_step_told_is_shown_at_the_rollout_that_owns_the_turn(group: GroupRecord) -> None:
    told = [
        replace(s, rollout=replace(s.rollout, infos=({}, {"at": 1}), turn_rewards=(0.5, None)))
        for s in group.group.rollouts
    ]
    found = rollouts(replace(group, group=replace(group.group, rollouts=tuple(told))))
    assert (found["0"]["turn_rewards"], found["0"]["infos"]) == ([[0, 0.5]], [[1, '{"at": 1}']])
    assert (found["0.0"]["turn_rewards"], found["0.0"]["infos"]) == ([], [[1, '{"at": 1}']])


def test_a_call_of_the_first_turn_stands_at_its_result_and_not_at_a_first_observation(group: GroupRecord) -> None:
    first = Segment(
        origin=Origin.INSERTED, kind=SegmentKind.RESULT, turn=0, text="you are here", token_ids=array("i", [1, 2])
    )
    seen = [
        replace(s, rollout=replace(s.rollout, segments=(s.rollout.segments[0], first, *s.rollout.segments[1:])))
        for s in group.group.rollouts
        if s.rollout.id == "0"
    ]
    found = rollouts(replace(group, group=replace(group.group, rollouts=tuple(seen)), advantages={}))["0"]
    assert [(s["kind"], len(s.get("calls", []))) for s in found["segments"]][:3] == [
        ("result", 0),
        ("turn", 0),
        ("result", 1),
    ]


def test_a_masked_rollout_says_why_and_has_neither_reward_nor_advantage(group: GroupRecord) -> None:
    masked = rollouts(group)["1"]
    assert masked["masked"] == ["tool:python", "the sandbox did not start"]
    assert (masked["reward"], masked["own"], masked["segments"][0]["advantages"]) == (None, None, None)


def test_advantages_are_cut_at_segments_and_told_apart_by_owner(group: GroupRecord) -> None:
    (scored,) = [s for s in group.group.rollouts if s.rollout.id == "0.1"]
    _, ask, got, end = scored.rollout.segments
    values = array("f", [1.0] * len(ask) + [0.0] * len(got) + [-1.0] * (len(end) - 1) + [3.0])
    found = rollouts(replace(group, advantages={"0.1": values}))["0.1"]
    assert found["shared"] == 1.0
    assert found["own"] == pytest.approx((3.0 - (len(end) - 1)) / len(end), abs=1e-4)
    assert found["segments"][0]["advantages"] == [-1.0] * (len(end) - 1) + [3.0]


def test_what_a_turn_of_a_fork_was_worth_stands_at_the_rollout_that_owns_the_turn(group: GroupRecord) -> None:
    """`ramet credit` measured the fork, which shares turn 0 with its parent."""
    worth = {"mean": 0.5, "low": 0.25, "high": None}
    name = f"{group.step}/0/0.1"
    credit = [{"rollout": name, "turn": turn, "worth": worth} for turn in (0, 1)]
    shown = {one["id"]: one for one in group_data(group, 0, no_splitter, credit)["rollouts"]}
    assert [segment.get("worth") for segment in shown["0"]["segments"]] == [[0.5, 0.25, None], None, None]
    assert [segment.get("worth") for segment in shown["0.1"]["segments"]] == [[0.5, 0.25, None]]
    assert "worth" not in str(group_data(group, 1, no_splitter, credit))


def test_token_texts_join_to_the_segments_text(run: Path, group: GroupRecord) -> None:
    split = TokenizerSplitter(run / "tokenizer" / "tokenizer.json")
    turn = group.group.rollouts[0].rollout.segments[1]
    found = split(turn)
    assert found is not None
    assert (len(found), "".join(found)) == (len(turn), turn.text)


@pytest.mark.parametrize("text", ["é漢🙂 x", "ab\u202ec"])
def test_a_character_of_several_tokens_stands_at_the_last_of_them(run: Path, text: str) -> None:
    split = TokenizerSplitter(run / "tokenizer" / "tokenizer.json")
    ids = array("i", split._tokenizer.encode(text).ids)
    found = split(_sampled(text, ids))
    assert found is not None
    assert (len(found), "".join(found)) == (len(text.encode()), text)


def test_a_cut_character_keeps_the_text_as_it_was_decoded(run: Path) -> None:
    split = TokenizerSplitter(run / "tokenizer" / "tokenizer.json")
    ids = array("i", split._tokenizer.encode("ab漢").ids[:-1])
    text = split._tokenizer.decode(list(ids), skip_special_tokens=False)
    found = split(_sampled(text, ids))
    assert found is not None
    assert (len(found), "".join(found)) == (4, text)


def test_ids_that_do_not_give_the_text_are_not_split(run: Path) -> None:
    split = TokenizerSplitter(run / "tokenizer" / "tokenizer.json")
    assert split(_sampled("something else", array("i", [1, 2, 3]))) is None
    assert split(_sampled("a", array("i", [10**6]))) is None


def test_without_a_usable_tokenizer_tokens_are_not_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert find_splitter([tmp_path]) is no_splitter
    (tmp_path / "tokenizer.json").write_text("{}")
    assert find_splitter([tmp_path]) is no_splitter
    assert "tokenizer.json could not be read" in caplog.text


def _sampled(text: str, ids: array[int]) -> Segment:
    return Segment(origin=Origin.SAMPLED, kind=SegmentKind.TURN, turn=0, text=text, token_ids=ids)


def test_numbers_that_json_lacks_become_unknown(make_run: Callable[..., Path]) -> None:
    (file,) = recorded_files(make_run(("a", "b", "c")))
    record = next(read_records(file.path))
    bad = array("f", [float("nan")] * 400)
    found = rollouts(replace(record, advantages={"0": bad}))["0"]
    assert (found["own"], found["segments"][0]["advantages"]) == (None, None)


def test_the_prompt_is_given_once(group: GroupRecord) -> None:
    data = group_data(group, 0, no_splitter)
    assert data["prompt"]["text"].startswith("<|user|>What is 17 * 23?")
    assert all(s["kind"] != "prompt" for one in data["rollouts"] for s in _segments(one))


def _segments(one: dict[str, Any]) -> Sequence[dict[str, Any]]:
    return one["segments"]  # type: ignore[no-any-return]
