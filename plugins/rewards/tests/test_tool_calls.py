"""`tool_calls` against cases whose result is known by hand, in the form of BFCL's answers and as plain calls."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from ramet import CallStatus, Rollout, StopReason, Task, ToolRecord, ToolSchema, user_prompt
from ramet.testing.doubles import written_rollout
from ramet.testing.reward import check_reward
from ramet_rewards.config import ToolCallsConfig
from ramet_rewards.tool_calls import ToolCalls

AREA = {"area": {"base": [10], "height": [5], "unit": ["units", ""]}}
PLACE = {"f": {"place": [{"city": ["Rome", "Roma"], "zip": ["", 1]}]}}
OSLO, ROME = ({"name": "weather", "arguments": {"city": city}} for city in ("Oslo", "Rome"))


def called(gold: Any, *calls: tuple[str, dict[str, Any]]) -> Rollout:
    records = [
        ToolRecord(turn=0, name=name, arguments=arguments, status=CallStatus.OK, text="", wait_s=0, run_s=0, attempts=1)
        for name, arguments in calls
    ]
    golds = gold if isinstance(gold, tuple) else (gold,)
    task = Task(id="t", prompt=user_prompt("?"), answer=tuple(json.dumps(one) for one in golds))
    return replace(written_rollout(task, ["a"]), tool_calls=tuple(records))


def score(rollout: Rollout, **options: bool) -> float:
    [found] = asyncio.run(ToolCalls(ToolCallsConfig(**options))([rollout]))
    assert found is not None and not isinstance(found, float)
    return found.value


@pytest.mark.parametrize(
    ("gold", "calls", "expected"),
    [
        ([AREA], [("area", {"base": 10, "height": 5})], 1),  # what may be left out is
        ([AREA], [("area", {"base": 10.0, "height": 5, "unit": "Units"})], 1),
        ([AREA], [("area", {"base": 10, "height": 5, "unit": "cm"})], 0),
        ([AREA], [("area", {"base": 10})], 0),  # what must be there is not
        ([AREA], [("area", {"base": 10, "height": 5, "colour": "red"})], 0),  # nobody asked for it
        ([AREA], [("area", {"base": True, "height": 5})], 0),
        ([AREA], [("volume", {"base": 10, "height": 5})], 0),
        ([AREA], [], 0),
        ([AREA], [("area", {"base": 10, "height": 5})] * 2, 0),  # one call too many
        ([OSLO, ROME], [("weather", {"city": "Rome"}), ("weather", {"city": "oslo"})], 1),  # in any order
        ([OSLO, ROME], [("weather", {"city": "Rome"}), ("weather", {"city": "Rome"})], 0),
        (OSLO, [("weather", {"city": "Oslo"})], 1),  # one call without a list
        ([], [], 1),  # no call is right
        ([], [("weather", {"city": "Oslo"})], 0),
        (([OSLO], [ROME]), [("weather", {"city": "Rome"})], 1),  # either answer
        ([{"f": {"x": [[1, 2]]}}], [("f", {"x": [1, 2]})], 1),
        ([{"f": {"x": [[1, 2]]}}], [("f", {"x": [2, 1]})], 0),
        ([PLACE], [("f", {"place": {"city": "Rome"}})], 1),
        ([PLACE], [("f", {"place": {"city": "Rome", "zip": 2}})], 0),
        ([{"name": "f", "arguments": {"x": {"y": ""}}}], [("f", {"x": {}})], 0),  # a text that must be there
        ([{"name": "f", "arguments": {"x": {"y": "A b"}}}], [("f", {"x": {"y": "ab"}})], 1),
        ([AREA], [("area", {"base": 10, "height": 5, "unit": None})], 1),  # null: left out
        ([AREA], [("area", {"base": 10, "height": None})], 0),
        ([AREA], [("area", {"base": "10", "height": 5})], 0),
        ({"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}, [("f", {"x": 1})], 1),  # OpenAI's
    ],
)
def test_calls_are_right_if_all_of_them_are(gold: Any, calls: list[Any], expected: float) -> None:
    assert score(called(gold, *calls)) == expected


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [("integer", 10.0, 0), ("integer", 10, 1), ("float", 10.0, 1), ("float", 10, 1), ("number", 10.0, 1)],
)
def test_a_whole_number_is_written_as_one_where_the_row_says_so(kind: str, given: float, expected: float) -> None:
    rollout = called([{"f": {"x": [10], "y": [[10], ""]}}], ("f", {"x": given}))
    properties = {"x": {"type": kind}, "y": {"type": "array", "items": {"type": kind}}}
    schema = ToolSchema(name="f", description="", parameters={"type": "dict", "properties": properties})
    for arguments in ({"x": given}, {"x": 10, "y": [given]}):
        record = replace(rollout.tool_calls[0], arguments=arguments)
        task = replace(rollout.task, schemas=(schema,))
        assert score(replace(rollout, task=task, tool_calls=(record,))) == expected


def test_a_call_at_the_limit_is_one_too_many() -> None:
    rollout = called([OSLO], ("weather", {"city": "Oslo"}))
    assert score(replace(rollout, stop=StopReason.CALL_LIMIT)) == 0


@pytest.mark.parametrize(("gold", "calls"), [([OSLO], [("weather", {"city": "Oslo"})]), ([], [])])
def test_a_call_that_no_tool_was_given_is_one_too_many(gold: Any, calls: list[Any]) -> None:
    rollout = called(gold, *calls)
    assert score(replace(rollout, infos=({}, {"calls_not_made": 1}))) == 0 < score(replace(rollout, infos=({}, {})))


def test_a_gold_call_of_a_tool_that_the_row_does_not_describe_is_reported_before_the_start() -> None:
    schema = ToolSchema(name="area", description="", parameters={})
    task = Task(id="t", prompt=user_prompt("?"), answer=(json.dumps([OSLO]),), schemas=(schema,))
    assert "calls 'weather', which the row does not describe" in (ToolCalls(ToolCallsConfig()).check_task(task) or "")
    assert ToolCalls(ToolCallsConfig()).check_task(replace(task, schemas=None)) is None


def test_a_call_that_fits_two_gold_ones_leaves_the_other_to_the_call_that_fits_one() -> None:
    gold = [{"f": {"x": [1, 2]}}, {"f": {"x": [1]}}]
    assert score(called(gold, ("f", {"x": 1}), ("f", {"x": 2}))) == 1


def test_partial_is_the_share_of_the_longer_list() -> None:
    one_right = called([OSLO, ROME], ("weather", {"city": "Rome"}), ("weather", {"city": "Bonn"}), ("f", {}))
    assert score(one_right, partial=True) == pytest.approx(1 / 3)
    assert score(one_right) == 0


def test_exact_text_compares_letters_too() -> None:
    assert score(called([OSLO], ("weather", {"city": "oslo"})), exact_text=True) == 0


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((), "no gold answer"),
        (("42",), "expected a JSON list of calls, got '42'"),
        (('[{"f": 1}]',), 'expected calls as {"name": NAME'),
        (('[{"f": {"x": 1}}]',), "{ARGUMENT: [VALUE, …]}}"),
    ],
)
def test_a_gold_answer_that_is_no_calls_is_reported_before_the_start(answer: tuple[str, ...], said: str) -> None:
    problem = ToolCalls(ToolCallsConfig()).check_task(Task(id="t", prompt=user_prompt("?"), answer=answer))
    assert problem is not None and said in problem


def test_it_is_a_reward() -> None:
    task = Task(id="t", prompt=user_prompt("?"), answer=(json.dumps(OSLO),))
    check_reward(ToolCalls(ToolCallsConfig()), tasks=[task])
