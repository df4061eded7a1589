"""`gsm8k`, `math_dapo` and `multiple_choice`: what counts as stating an answer, as tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ramet import ConfigError, Rollout, Task, user_prompt
from ramet.testing.doubles import written_rollout
from ramet.testing.reward import TASKS, check_reward
from ramet_rewards.config import (
    Gsm8kMethod,
    Gsm8kRewardConfig,
    MathConfig,
    MathDapoConfig,
    MultipleChoiceConfig,
)
from ramet_rewards.gsm8k import Gsm8k as gsm8k
from ramet_rewards.math_dapo import MathDapo
from ramet_rewards.multiple_choice import make as multiple_choice


def reply(text: str, gold: str, answer: str | None = None, **metadata: Any) -> Rollout:
    task = Task(id="t", prompt=user_prompt("?"), answer=(gold,), metadata=metadata)
    return written_rollout(task, [text], answer=answer)


def value(reward: Any, rollout: Rollout) -> float:
    [score] = asyncio.run(reward([rollout]))
    return float(getattr(score, "value", score))


GSM8K = [  # reply, gold answer, strict, flexible, why
    ("#### 18", "18", 1, 1, ""),
    ("so 3 + 15 #### 18", "They are 18.\n#### 18", 1, 1, "the published form of a gold answer"),
    ("#### 1,234", "1234", 1, 1, ""),
    ("#### 1234.00", "1,234", 1, 1, "by value; the release compares texts"),
    ("####18", "18", 1, 1, "the release wants a space"),
    ("#### $5", "5", 1, 1, "the release wants no sign of money"),
    (r"#### \$5.", "5", 1, 1, "and reads the full stop as part of the number"),
    ("#### -3.5 end", "-3.5", 1, 1, ""),
    ("#### 3.5", "-3.5", 0, 0, "sign"),
    ("#### 1\n#### 2", "2", 1, 1, "the last one; the release takes the first"),
    ("The answer is 18.", "18", 0, 1, "not marked"),
    ("18 of 20", "18", 0, 0, "the last number"),
    ("It is 18, as shown.", "18", 0, 1, "the comma is none of it"),
    ("of 20-18", "18", 0, 1, "a dash between numbers is no sign"),
    ("#### \N{MINUS SIGN}18", "-18", 1, 1, "the sign of Unicode"),
    ("none", "18", 0, 0, ""),
    ("", "18", 0, 0, ""),
    ("#### " + "9" * 500, "9", 0, 0, "more digits than are read"),
    ("1 " * 500_000, "1", 0, 1, "a megabyte"),
    ("####" + " " * 10_000 + "x", "1", 0, 0, "spaces that could be tried in every way"),
    ("####" + " " * 10_000 + "- $ 1", "-1", 1, 0, ""),
]


@pytest.mark.parametrize(("text", "gold", "strict", "flexible", "why"), GSM8K, ids=[row[0][:20] for row in GSM8K])
def test_gsm8k_reads_the_number_that_is_stated(text: str, gold: str, strict: int, flexible: int, why: str) -> None:
    for method, expected in ((Gsm8kMethod.STRICT, strict), (Gsm8kMethod.FLEXIBLE, flexible)):
        assert value(gsm8k(Gsm8kRewardConfig(method=method)), reply(text, gold)) == expected, why


def test_gsm8k_flexible_prefers_the_final_answer_and_a_wrong_number_may_earn_its_format() -> None:
    flexible = gsm8k(Gsm8kRewardConfig(method=Gsm8kMethod.FLEXIBLE))
    assert value(flexible, reply("7 <answer>18</answer> 3", "18", answer="18")) == 1.0
    assert value(gsm8k(Gsm8kRewardConfig(format_score=0.1)), reply("#### 3", "18")) == 0.1
    with pytest.raises(ConfigError, match="the gold answer 'many' is not a number"):
        value(flexible, reply("#### 3", "many"))


DAPO = [  # reply, gold answer, score by line, score by box, why
    ("Answer: 42", "42", 1, -1, ""),
    (r"answer : \frac12", r"\frac{1}{2}", 1, -1, "any case, spaces"),
    ("Answer: 0.5", r"\frac{1}{2}", 1, -1, "compared as `math` does; the release compares texts"),
    ("Answer: 1\nAnswer: 2", "2", 1, -1, "the last line"),
    ("<answer>Answer: 7</answer>", "7", 1, -1, "tags after it are none of it"),
    ("**Answer:** 7", "7", 1, -1, "bold type"),
    ("**Answer**: **7**", "7", 1, -1, ""),
    (r"It is \boxed{7}.", "7", -1, 1, ""),
    ("Answer: -7", "7", -1, -1, "sign"),
    ("Answer: 7" + " so" * 200, "7", -1, -1, "before the last 300 characters"),
    ("7", "7", -1, -1, "not stated"),
    ("", "7", -1, -1, ""),
]


@pytest.fixture(scope="module")
def dapo() -> Iterator[list[MathDapo]]:
    """By the line, and by the box."""
    made = [MathDapo(MathDapoConfig(boxed=boxed, math=MathConfig(workers=1))) for boxed in (False, True)]
    yield made
    for one in made:
        asyncio.run(one.aclose())


@pytest.mark.parametrize(("text", "gold", "line", "box", "why"), DAPO, ids=[row[0][:20] for row in DAPO])
def test_dapo_reads_the_last_line_or_the_last_box(
    dapo: list[MathDapo], text: str, gold: str, line: int, box: int, why: str
) -> None:
    assert [value(reward, reply(text, gold)) for reward in dapo] == [line, box], why


CHOICES = [  # answer, gold answer, score, why
    ("B", "B", 1, ""),
    ("b", "B", 1, ""),
    ("(B)", "B", 1, ""),
    ("B.", "B", 1, ""),
    ("B)", "(B)", 1, ""),
    ("B) Paris", "B", 1, "with its text"),
    ("B: a river", "B", 1, "an article in the text is no second choice"),
    ("Answer: B", "B", 1, ""),
    ("The correct answer is B.", "B", 1, ""),
    ("option B", "B", 1, ""),
    (r"\boxed{\text{B}}", "B", 1, ""),
    (r"\boxed{\text{Paris}}", "B", 1, ""),
    (r"\boxed{\text{A, C}}", "A, C", 1, ""),
    ("**B**", "B", 1, ""),
    ("Ｂ", "B", 1, "full width"),
    ("答案：B", "B", 0, "words of other languages are not read"),
    ("A", "A", 1, "the release takes it for an article"),
    ("A cat", "A", 0, "an article"),
    ("A, B", "A", 0, "two choices"),
    ("A or B", "A", 0, ""),
    ("B, because A is wrong", "B", 0, "names two"),
    ("C", "B", 0, ""),
    ("C", "A, C", 0, "one of two; A is no article there"),
    ("(c) and (a)", "A, C", 1, "in any order"),
    ("A, C", "A and C", 1, ""),
    ("A, B, C", "A, C", 0, "all of them"),
    ("Z", "B", 0, "no letter of a choice"),
    ("Paris", "B", 1, "the text of the choice"),
    ("paris.", "B", 1, ""),
    ("Rome", "B", 0, "another one's"),
    ("B", "Paris", 1, "the gold answer may be the text"),
    ("", "B", 0, ""),
    ("B" * 1_000_000, "B", 0, "a megabyte"),
    ("answer  " * 200 + "zz", "B", 0, "spaces that could be tried in every way"),
    ("answer : " * 200 + "B", "B", 1, ""),
    ("The  final\nanswer  is :  B", "B", 1, ""),
]


@pytest.mark.parametrize(
    ("answer", "gold", "expected", "why"), CHOICES, ids=[f"{a[:20]}-{g}" for a, g, _, _ in CHOICES]
)
def test_a_choice_is_named_by_its_letter_or_its_text(answer: str, gold: str, expected: int, why: str) -> None:
    reward = multiple_choice(MultipleChoiceConfig())
    listed = reply("x", gold, answer=answer, choices=["Rome", "Paris", "Bern"])
    by_letter = reply("x", gold, answer=answer, choices={"a": "Rome", "b": "Paris", "c": "Bern"})
    assert value(reward, listed) == value(reward, by_letter) == expected, why


def test_a_choice_without_texts_letters_or_answer() -> None:
    reward = multiple_choice(MultipleChoiceConfig(letters="XY"))
    assert value(reward, reply("x", "Y", answer="y")) == 1.0
    assert value(reward, reply("x", "A", answer="A")) == 1.0  # no letter of a choice: compared as a text
    assert value(reward, replace(reply("x", "Y"), answer=None)) == 0.0
    with pytest.raises(ValueError, match="letters must be different capital letters, got 'abA'"):
        MultipleChoiceConfig(letters="abA")


def test_the_rewards_keep_the_contract() -> None:
    check_reward(gsm8k(Gsm8kRewardConfig()), tasks=TASKS[:1])
    check_reward(MathDapo(MathDapoConfig(math=MathConfig(workers=1))))
    check_reward(multiple_choice(MultipleChoiceConfig()))
