"""`deep_research`, `deep_research_release` and `format_correct` on whole rollouts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from ramet import CallStatus, ConfigError, Rollout, StopReason, Task, ToolRecord, user_prompt
from ramet.testing.doubles import written_rollout
from ramet.testing.reward import check_reward
from ramet_rewards.config import (
    AccuracyConfig,
    DeepResearchConfig,
    FormatCorrectConfig,
    MathConfig,
    TagRules,
    ThoughtRules,
)
from ramet_rewards.deep_research import DeepResearch
from ramet_rewards.format_correct import FormatCorrect
from ramet_rewards.release.deep_research import make as release

THINK = "<think>t</think>"
SEARCH, PYTHON = "<search>q</search>", "<python>1</python>"
RESULT = " <result>\nr\n</result>"


def ran(name: str, status: CallStatus = CallStatus.OK) -> ToolRecord:
    return ToolRecord(turn=0, name=name, arguments={}, status=status, text="r", wait_s=0, run_s=0, attempts=1)


def rollout(
    *turns: str, gold: str = "Paris", answer: str | None = r"\boxed{Paris}", results: tuple[str, ...] = (),
    calls: tuple[ToolRecord, ...] = (),
) -> Rollout:  # fmt: skip
    task = Task(id="t", prompt=user_prompt("?"), answer=(gold,))
    made = written_rollout(task, turns, results=results)
    return replace(made, stop=StopReason.ANSWER if answer else StopReason.LENGTH, answer=answer, tool_calls=calls)


def answered(text: str, **given: Any) -> Rollout:
    return rollout(f"{THINK}<answer>{text}</answer>", answer=text, **given)


BOTH = (ran("search"), ran("python"))
TOOLS = (THINK + SEARCH, PYTHON, r"<answer>\boxed{Paris}</answer>")
CASES = {  # rollout, mended, released, why
    "right": (answered(r"\boxed{Paris}"), 1.0, 1.0, ""),
    "wrong": (answered(r"\boxed{Rome}"), 0.0, 0.0, ""),
    "partly right": (answered(r"\boxed{Paris of the North}"), 0.5, 0.5, ""),
    "no box": (answered("Paris"), -1.0, -1.0, ""),
    "no thinking": (rollout(r"<answer>\boxed{Paris}</answer>"), -1.0, -1.0, ""),
    "cut by the limit": (rollout("<think>t", answer=None), -1.0, -1.0, ""),
    "several tools": (rollout(*TOOLS, results=(RESULT,) * 2, calls=BOTH), 1.1, 1.1, ""),
    "several tools, wrong": (
        rollout(*TOOLS, gold="Rome", results=(RESULT,) * 2, calls=BOTH), 0.0, 0.0, "no bonus for a wrong answer",
    ),
    "one tool twice": (
        rollout(THINK + PYTHON, PYTHON, r"<answer>\boxed{Paris}</answer>", results=(RESULT,) * 2,
                calls=(ran("python"), ran("python"))), 1.0, 1.0, "several means different ones",
    ),
    "a call that failed": (
        rollout(*TOOLS, results=(RESULT,) * 2, calls=(ran("search"), ran("python", CallStatus.ERROR))), 1.0, 1.1,
        "calls have to run: the release looks for closing tags",
    ),
    "closing tags without calls": (
        rollout("<think></search></python></think>" + r"<answer>\boxed{Paris}</answer>"), -1.0, 1.1,
        "tags that close nothing are a broken format, and no call",
    ),
    "tags in a result": (
        rollout(*TOOLS, results=(" <result>\n<answer>x</answer><think>\n</result>", RESULT), calls=BOTH), 1.1, -1.0,
        "what a page holds is not the policy's",
    ),
    "a result of its own": (
        rollout(THINK + SEARCH + RESULT + r"<answer>\boxed{Paris}</answer>"), -1.0, 1.0, "only tools write results",
    ),
    "tags that cross": (rollout(r"<think>t<answer></think>\boxed{Paris}</answer>"), -1.0, 1.0, "closed, not crossing"),
    "a sign": (answered(r"\boxed{-5}", gold="5"), 0.0, 1.0, ""),
    "decimals": (answered(r"\boxed{1.5}", gold="15"), 0.0, 1.0, ""),
    "order of a pair": (answered(r"\boxed{(2, 1)}", gold="(1, 2)"), 0.0, 1.0, ""),
    "spaces in a formula": (answered(r"\boxed{3\sqrt{3}-6}", gold=r"3\sqrt{3} - 6"), 1.0, 0.0, ""),
    "a letter": (answered(r"\boxed{A}", gold="A"), 1.0, 0.0, ""),
    "accents": (answered(r"\boxed{Beyonce}", gold="Beyoncé"), 1.0, 0.0, ""),
    "Chinese": (answered(r"\boxed{王 小明。}", gold="王小明"), 1.0, 0.0, ""),
}  # fmt: skip


def scores(reward: Any, *rollouts: Rollout) -> list[Any]:
    async def main() -> list[Any]:
        return [(await reward([one]))[0] for one in rollouts]

    return asyncio.run(main())


def test_the_mended_and_the_released_reward_differ_where_the_table_says() -> None:
    mended = DeepResearch(DeepResearchConfig(accuracy=AccuracyConfig(math=MathConfig(workers=1))))
    for reward, column in ((mended, 1), (release(), 2)):
        found = scores(reward, *(case[0] for case in CASES.values()))
        values = {name: score.value for name, score in zip(CASES, found, strict=True)}
        assert values == pytest.approx({name: case[column] for name, case in CASES.items()})  # type: ignore[misc]
    asyncio.run(mended.aclose())


def test_each_part_is_logged_and_every_option_takes_effect() -> None:
    [score] = scores(DeepResearch(DeepResearchConfig()), CASES["several tools"][0])
    assert score.parts == {"format": 1.0, "accuracy": 1.0, "bonus": 0.1, "tools": 2.0}
    lenient = DeepResearchConfig(
        bad_format=-0.5, bonus=0.3, bonus_tools=1, boxed=False, tags=ThoughtRules(required=["answer"])
    )
    names = ("no box", "no thinking", "cut by the limit", "a call that failed")
    found = scores(DeepResearch(lenient), *(CASES[name][0] for name in names))
    assert [one.value for one in found] == [1.0, 1.0, -0.5, 1.3]


def test_format_and_answer_count_by_themselves() -> None:
    reward = FormatCorrect(FormatCorrectConfig())
    names = ("right", "wrong", "partly right", "tags that cross", "cut by the limit", "no box", "no thinking")
    found = scores(reward, *(CASES[name][0] for name in names))
    assert [one.value for one in found] == pytest.approx([1.0, 0.2, 0.2, 0.8, 0.0, 1.0, 1.0])
    assert found[3].parts == {"format": 0.0, "correct": 1.0}
    strict = FormatCorrectConfig(format_weight=0.5, correct_weight=2.0, boxed=True, tags=TagRules(required=["think"]))
    found = scores(FormatCorrect(strict), *(CASES[name][0] for name in ("right", "no box", "no thinking")))
    assert [one.value for one in found] == [2.5, 2.0, 2.0]


@pytest.mark.parametrize("reward", [DeepResearch(DeepResearchConfig()), FormatCorrect(FormatCorrectConfig())])
def test_a_task_needs_a_gold_answer_and_an_answer_that_is_not_judged_masks_itself_alone(
    reward: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"task 't' .*gold answer.*; the reward"):
        scores(reward, rollout("x", gold=""))

    async def unjudged(golds: Any, answer: str) -> float | None:
        return None if "Paris" in answer else 0.5

    monkeypatch.setattr(reward._accuracy, "of", unjudged)
    found = asyncio.run(reward([CASES["right"][0], CASES["wrong"][0]]))
    assert found[0] is None and found[1].value > 0


@pytest.mark.parametrize(
    "reward", [DeepResearch(DeepResearchConfig()), FormatCorrect(FormatCorrectConfig()), release()]
)
def test_the_rewards_keep_the_contract(reward: Any) -> None:
    check_reward(reward)
