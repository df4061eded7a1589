from __future__ import annotations

import time

import pytest

from ramet.rollout.config import TagsConfig
from ramet.rollout.steps.tags import Tags
from ramet.rollout.steps.trace_check import ChecksTraces

STEP = Tags(TagsConfig())
RESULT = " <result>\n42\n</result>"


@pytest.mark.parametrize(
    "text",
    [
        "plain words, a < b and <b>bold</b>",
        "<think>easy</think><answer>42</answer>",
        f"<think>count</think><python>6*7</python>{RESULT}<think>so</think><answer>42</answer>\n",
        f"<think>inside <python>6*7</python>{RESULT} of reasoning</think><answer>42</answer>",
        f"<python>print('<answer> <think>')</python>{RESULT}<answer>42</answer>",
        "<python>1</python><result>a page with </answer>, <python> and <think> in it</result><answer>42</answer>",
        "<python>1</python>",
        f"<search>q</search>{RESULT}<answer>42</answer>",
        "<result> <result>\nA result is written for you once a tool has run.\n</result><answer>42</answer>",
        "<reader>url</reader> <result>\nThere is no tool reader.\n</result><answer>42</answer>",
    ],
)
def test_a_trace_that_keeps_the_format_has_no_fault(text: str) -> None:
    assert STEP.check_trace(text, ["python"]).fault is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("<python>1</python> <result>\n42\n<answer>42</answer>", "<result> is not closed"),
        (f"<python>1</python> <result>\n<python>2</python>{RESULT}", "<result> is not closed before the next <result>"),
        ("<think>a</think><answer>42", "<answer> is not closed"),
        ("<think>a<answer>42</answer>", "<answer> inside <think>"),
        ("<answer>42</answer><think>a", "<think> is not closed"),
        ("<think>a<think>b</think><answer>42</answer>", "<think> is not closed before the next <think>"),
        ("<think>a</think><python>1", "<python> is not closed"),
        (f"<python>1{RESULT}<answer>42</answer>", "<python> is not closed before <result>"),
        (f"<python>1 <python>2</python>{RESULT}", "<python> is not closed before the next <python>"),
        ("<python>1<answer>42</answer>", "<python> is not closed before </answer>"),
        (f"<think><python>1</think></python>{RESULT}", "<python> is not closed before </think>"),
        ("<think>a</think>42</answer>", "</answer> without <answer> before it"),
        (f"1</python>{RESULT}", "</python> without <python> before it"),
        ("<think>a</think>b</think>", "</think> without <think> before it"),
        ("<answer>42</answer></result>", "</result> without <result> before it"),
        (f"I know it.{RESULT}<answer>42</answer>", "<result> without a call before it"),
        (f"<think>a</think>{RESULT}<answer>42</answer>", "<result> without a call before it"),
        (f"<answer>42</answer>{RESULT}", "<result> without a call before it"),
        ("<python>1</python><answer>42</answer>", "</python> without <result> right after it"),
        (f"<search>q{RESULT}<search>r</search>{RESULT}", "<search> is not closed before <result>"),
    ],
)  # fmt: skip
def test_a_fault_is_named(text: str, fault: str) -> None:
    assert STEP.check_trace(text, ["python"]).fault == fault


def test_what_is_no_fault_by_itself_is_noted() -> None:
    opened_by_the_prompt = STEP.check_trace("reasoning</think><answer>42</answer>", [])
    assert (opened_by_the_prompt.fault, opened_by_the_prompt.unopened_think) == (None, True)
    unanswered = STEP.check_trace(f"<python>1</python>{RESULT} I do not know.", [])
    assert (unanswered.has_tags, unanswered.has_answer) == (True, False)
    assert STEP.check_trace("words", []).has_tags is False


def test_every_tag_that_a_result_follows_is_a_call() -> None:
    text = f"<search>q</search>{RESULT}<python>1</python>{RESULT}<search>r</search>\n\n{RESULT}<answer>42</answer>"
    assert STEP.check_trace(text, ["python"]).called == ("search", "python")
    refused = "<reader>url</reader> <result>\nThere is no tool reader.\n</result>"
    assert STEP.check_trace(refused, []).called == ()


def test_the_names_of_the_step_count() -> None:
    step = Tags(TagsConfig(think="plan", result="observation", answer="final"))
    text = "<plan>a</plan><python>1</python><observation>42</observation><final>42"
    assert isinstance(step, ChecksTraces)
    assert step.check_trace(text, ["python"]).fault == "<final> is not closed"


@pytest.mark.parametrize(
    "piece", ["<result>", "</x>\n<result>", "<python>", " " * 50, "<think></think>", "</a><result>"]
)
def test_a_long_trace_is_checked_in_one_pass(piece: str) -> None:
    started = time.monotonic()
    STEP.check_trace(piece * 20_000, ["python"])
    assert time.monotonic() - started < 5
