"""The data model: derived text, validity, views, and that everything travels between processes."""

from __future__ import annotations

import pickle
from array import array
from dataclasses import FrozenInstanceError, replace

import pytest

import ramet
from ramet import (
    CallStatus,
    Fault,
    Group,
    GroupView,
    Message,
    Origin,
    Rollout,
    RolloutView,
    Segment,
    SegmentKind,
    StopReason,
    Task,
    ToolRecord,
    ToolSchema,
    TurnView,
    user_prompt,
)

TASK = Task(id="t/0", prompt=(Message(role="system", content="Be brief."), *user_prompt("2 + 3?")), answer=("5",))


def segment(kind: SegmentKind, turn: int, text: str) -> Segment:
    ids = array("i", range(len(text)))
    sampled = kind is SegmentKind.TURN
    floats = array("f", [0.5] * len(text)) if sampled else None
    return Segment(
        origin=Origin.SAMPLED if sampled else Origin.INSERTED,
        kind=kind,
        turn=turn,
        text=text,
        token_ids=ids,
        logprobs=floats,
        entropies=floats,
        policy_version=3 if sampled else None,
    )


def rollout() -> Rollout:
    record = ToolRecord(
        turn=0, name="python", arguments={"code": "1"}, status=CallStatus.OK, text="1", wait_s=0, run_s=0.1, attempts=1
    )
    return Rollout(
        id="0",
        task=TASK,
        segments=(
            segment(SegmentKind.PROMPT, 0, "2 + 3?"),
            segment(SegmentKind.TURN, 0, "<python>1"),
            segment(SegmentKind.RESULT, 0, "[1]"),
            segment(SegmentKind.TURN, 1, "so "),
            segment(SegmentKind.TURN, 1, "5"),
            segment(SegmentKind.FORCED, 1, "!"),
        ),
        stop=StopReason.ANSWER,
        answer="5",
        tool_calls=(record,),
    )


def test_texts_and_counts_are_derived_from_the_segments() -> None:
    one = rollout()
    assert one.response == "<python>1[1]so 5!"
    assert one.sampled == "<python>1so 5"
    assert one.reply == "so 5"
    assert one.n_sampled_tokens == len("<python>1so 5")
    assert one.n_response_tokens == len("<python>1[1]so 5!")


def test_a_rollout_that_sampled_nothing_has_an_empty_reply() -> None:
    one = replace(rollout(), segments=rollout().segments[:1])
    assert (one.reply, one.sampled, one.response, one.n_response_tokens) == ("", "", "", 0)


def test_a_fault_makes_a_rollout_invalid_and_leaves_the_valid_ones_of_its_group() -> None:
    good, bad = rollout(), replace(rollout(), id="1", fault=Fault(where="tool:python", message="down"))
    assert good.valid and not bad.valid
    assert Group(task=TASK, rollouts=(good, bad)).valid == (good,)


def test_a_group_pickles_and_keeps_what_forks_share() -> None:
    root = rollout()
    fork = replace(root, id="0.0", parent="0", fork_turn=1, n_shared=3)
    copy = pickle.loads(pickle.dumps(Group(task=TASK, rollouts=(root, fork))))
    assert copy == Group(task=TASK, rollouts=(root, fork))
    assert copy.rollouts[0].segments[0] is copy.rollouts[1].segments[0]


def test_what_crosses_seams_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        rollout().answer = "6"  # type: ignore[misc]


def test_the_question_is_the_last_user_message() -> None:
    assert TASK.question == "2 + 3?"
    assert Task(id="t/1", prompt=()).question == ""


def view(id: str, parent: str | None, fork_turn: int | None, *n_forks: int) -> RolloutView:
    turns = tuple(TurnView(index=i, entropies=(), n_tokens=0, ended=True, n_forks=n) for i, n in enumerate(n_forks))
    return RolloutView(id=id, root=id[0], parent=parent, fork_turn=fork_turn, turns=turns, finished=False, valid=True)


def test_forks_of_shared_turns_belong_to_the_parent() -> None:
    assert view("0", None, None, 0, 2, 1).n_forks == 3
    assert view("0.0", "0", 1, 0, 2, 1).n_forks == 3
    assert view("0.1", "0", 2, 0, 2, 1).n_forks == 1


def test_a_group_view_finds_rollouts_by_branch_path() -> None:
    both = (view("0", None, None, 1), view("0.0", "0", 1))
    group = GroupView(task=TASK, budget=4, budget_left=2, rollouts=both, vocab_size=10)
    assert group.rollout("0.0") is both[1]
    with pytest.raises(KeyError):
        group.rollout("7")


@pytest.mark.parametrize(
    ("properties", "required", "expected"),
    [
        ({"code": {"type": "string"}}, ["code"], "code"),
        ({"code": {"type": "string"}, "n": {"type": "integer"}}, ["code"], "code"),
        ({"code": {"type": "string"}}, [], None),
        ({"n": {"type": "integer"}}, ["n"], None),
        ({"a": {"type": "string"}, "b": {"type": "string"}}, ["a", "b"], None),
        ({}, [], None),
    ],
)
def test_exactly_one_required_string_makes_a_text_parameter(
    properties: dict[str, dict[str, str]], required: list[str], expected: str | None
) -> None:
    parameters = {"type": "object", "properties": properties, "required": required}
    assert ToolSchema(name="t", description="d", parameters=parameters).text_parameter == expected


def test_every_public_name_exists_once() -> None:
    assert len(ramet.__all__) == len(set(ramet.__all__))
    assert all(hasattr(ramet, name) for name in ramet.__all__)
