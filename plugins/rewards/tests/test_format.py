from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from ramet import StopReason
from ramet.testing.reward import check_reward
from ramet_rewards.config import FormatConfig
from ramet_rewards.format import make


def _score(rollout: Any, **options: Any) -> Any:
    [score] = asyncio.run(make(FormatConfig(**options))([rollout]))  # type: ignore[arg-type]
    assert score.masked is False
    return score.value


@pytest.mark.parametrize(
    "turns",
    [
        ("<answer>1</answer>",),
        ("<think>a</think><answer>1</answer>",),
        ("<think>a</think><python>1</python>", "<think>b</think><answer>1</answer>"),
        ("<think>a<python>1</python>", "</think><answer>1</answer>"),
        ("if 1 < 2 > 0: <b>fine</b> <answer>1</answer>",),
    ],
)
def test_closed_tags_and_an_answer_are_good(write: Any, turns: tuple[str, ...]) -> None:
    assert _score(write.turns(*turns)) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "<think>a<answer>1</answer>",
        "a</think><answer>1</answer>",
        "<think>a<answer>1</think></answer>",
        "<think><think>a</think></think><answer>1</answer>",
        "<think>a</think>",
        "<result>1</result><answer>1</answer>",
        "<python>1<answer>1</answer>",
        "",
    ],
)
def test_open_crossing_nested_missing_and_forbidden_tags_are_bad(write: Any, text: str) -> None:
    assert _score(write.turns(text)) == 0.0
    assert _score(write.turns(text), bad=-1.0) == -1.0


def test_a_rollout_that_did_not_end_with_an_answer_is_bad(write: Any) -> None:
    assert _score(write.turns("<answer>1</answer>", answer=None)) == 0.0


def test_what_a_tool_returned_counts_for_nothing(write: Any) -> None:
    results = (" <result>\n</think><result><answer>\n</result>",)
    assert _score(write.turns("<python>1</python>", "<answer>1</answer>", results=results)) == 1.0


def test_required_tags_can_be_asked_for_and_must_be_paired_ones(write: Any) -> None:
    assert _score(write.turns("<answer>1</answer>"), required=["think", "answer"]) == 0.0
    with pytest.raises(
        ValueError, match="required names plan; allowed: tags of `paired`, that is think, python, search"
    ):
        FormatConfig(required=["plan"])


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (
            {"paired": ["answer", "<plan>"]},
            "tags are named '<plan>'; allowed: names without brackets, slashes and spaces",
        ),
        ({"forbidden": ["answer"], "paired": ["answer"]}, "forbidden names answer; allowed: tags that are not in "
         "`paired`, that is answer"),
        ({"paired": [], "required": [], "forbidden": []}, "paired and forbidden are empty; allowed: at least one tag"),
    ],
)  # fmt: skip
def test_tags_that_no_text_could_have_are_refused(rules: dict[str, list[str]], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        FormatConfig(**rules)  # type: ignore[arg-type]
    assert str(caught.value) == said


def test_the_reward_keeps_the_contract() -> None:
    check_reward(make(FormatConfig()))


def test_rollouts_cut_by_the_token_limit_can_be_left_out(write: Any) -> None:
    cut = replace(write.turns("<answer>1", answer=None), stop=StopReason.LENGTH)
    ended = write.turns("<answer>1", answer=None)
    for leave_out, masked in ((True, [True, False]), (False, [False, False])):
        reward = make(FormatConfig(leave_out_truncated=leave_out))
        scores = asyncio.run(reward([cut, ended]))  # type: ignore[arg-type]
        assert [score.masked for score in scores] == masked
        assert [score.value for score in scores] == [0.0, 0.0]
