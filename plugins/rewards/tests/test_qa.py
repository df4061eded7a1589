"""`qa_f1`, `qa_em`, and the two normalisations below them."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from ramet.testing.reward import check_reward
from ramet_rewards.config import Normalisation, QaConfig, QaEmConfig
from ramet_rewards.qa import em, f1
from ramet_rewards.text import best_f1, exact_match, unicode_tokens

GOLDEN = Path(__file__).resolve().parents[3] / "tests" / "golden" / "values" / "rewards.jsonl"
SQUAD, UNICODE = Normalisation.SQUAD, Normalisation.UNICODE


@pytest.mark.parametrize(
    ("answer", "golds", "expected"),
    [
        ("Paris", ["paris"], 1.0),
        ("The Eiffel Tower!", ["eiffel tower"], 1.0),
        ("the 5 apples", ["5"], 2 / 3),
        ("Johann Goethe", ["Goethe", "Johann Wolfgang von Goethe"], 2 / 3),
        ("a a b", ["a b b"], 2 / 3),  # the articles go: b against b b
        ("yes it is", ["yes"], 0.0),
        ("yes", ["no"], 0.0),
        ("", ["x"], 0.0),
        ("x", [], 0.0),
    ],
)
def test_f1_counts_shared_tokens(answer: str, golds: list[str], expected: float) -> None:
    assert best_f1(answer, golds, SQUAD) == pytest.approx(expected)


def test_f1_is_that_of_the_golden_rows() -> None:
    rows = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
    rows = [row["input"] | {"output": row["output"]} for row in rows if row["function"] == "deep_research.get_f1_score"]
    assert rows
    for row in rows:
        golds = [row["ground_truths"]] if isinstance(row["ground_truths"], str) else row["ground_truths"]
        assert best_f1(row["prediction"], golds, SQUAD) == pytest.approx(row["output"], abs=1e-6), row


PERTURBED = [  # gold answer, answer, F1, whether equal, why
    ("5", "-5", 0.0, "a sign"),
    ("-5", "\N{MINUS SIGN}5", 1.0, "as typeset"),
    ("15", "1.5", 0.0, "decimals"),
    ("1.5", "1.50", 1.0, "zeros at the end say nothing"),
    ("1234", "1,234", 1.0, "nor do thousands separators"),
    ("1990-1995", "1990–1995", 1.0, "a dash between numbers is no sign"),
    ("1990 -1995", "1990 1995", 0.5, "before a number alone it is one"),
    ("7", "007", 1.0, ""),
    ("A", "A", 1.0, "an article alone is the answer"),
    ("A", "a.", 1.0, ""),
    ("A", "B", 0.0, ""),
    ("The Beatles", "Beatles", 1.0, "articles beside words say nothing"),
    ("O'Brien", "O’Brien", 1.0, "curly quotes"),
    ("“Paris”", "Paris", 1.0, ""),
    ("U.S.A.", "USA", 1.0, "dots of abbreviations"),
    ("Saint-Denis", "Saint Denis", 1.0, ""),
    ("Beyoncé", "Beyonce", 1.0, "accents on Latin letters"),
    ("é", "é", 1.0, "composed or not"),
    ("й", "и", 0.0, "another letter in other scripts"),
    ("Straße", "STRASSE", 1.0, "case folding"),
    ("２０２４", "2024", 1.0, "full width"),
    ("ﬁle", "file", 1.0, "ligatures"),
    ("北京", "北京。", 1.0, "Chinese punctuation"),
    ("王小明", "王 小明", 1.0, "spaces between characters say nothing"),
    ("北京", "京北", 0.5, "order counts where words are not separated"),
    ("北京", "北京市", 0.8, "a part in common"),
    ("北京", "南京", 0.5, ""),
    ("2024年", "2024", 2 / 3, "a token of its own"),
    ("北京，中国", "北京, 中国", 1.0, ""),
    ("Paris, France", "city of Paris", 0.4, "paraphrases share words alone: a judge knows more"),
    ("Goethe", "Johann Wolfgang von Goethe", 0.4, ""),
    ("Ang Lee", "Lee Ang", 1.0, "order of words does not count for F1"),
    ("yes", "Yes.", 1.0, ""),
    ("yes", "yes, it is", 0.0, "all or nothing"),
    ("x", "", 0.0, ""),
    ("5", ".5", 0.0, "a decimal without its zero"),
    ("0.5", ".5", 1.0, ""),
    ("-0.5", "-.5", 1.0, ""),
    ("5", "+5", 1.0, "a sign that says nothing"),
    ("5", "–5", 0.0, "any dash before a number alone is a sign"),
    ("52", "5²", 0.0, "a power"),
    ("31/2", "3½", 0.4, "three and a half"),
    ("1/2", "½", 1.0, ""),
    ("H2O", "H₂O", 1.0, "beside letters it is a way of writing"),
    ("∞", "!!!", 0.0, "signs alone: two without any token are not equal"),
    ("∞", "∞", 1.0, ""),
    ("x<5", "x>5", 2 / 3, "signs of mathematics"),
    ("C++", "C#", 0.4, ""),
    ("C++", "c++", 1.0, ""),
    ("C#", "C", 2 / 3, ""),
    ("की", "का", 0.0, "vowels of Hindi are marks, and part of the word"),
    ("ไทย", "ไทย", 1.0, ""),
    ("محمد", "مُحَمَّد", 1.0, "points of Arabic say nothing"),
]


@pytest.mark.parametrize(("gold", "answer", "expected", "why"), PERTURBED, ids=[f"{g}-{a}" for g, a, _, _ in PERTURBED])
def test_a_perturbed_answer_has_the_f1_of_the_table(gold: str, answer: str, expected: float, why: str) -> None:
    assert best_f1(answer, [gold], UNICODE) == pytest.approx(expected), why
    reordered = sorted(unicode_tokens(gold)) == sorted(unicode_tokens(answer)) and gold == "Ang Lee"
    assert exact_match(answer, [gold], UNICODE) == float(expected == 1.0 and not reordered), why


def test_exact_match_may_look_within_the_answer_word_by_word() -> None:
    assert exact_match("It is Paris, I think.", ["Paris"], SQUAD) == 0.0
    assert exact_match("It is Paris, I think.", ["Paris"], SQUAD, within=True) == 1.0
    assert exact_match("It is Parisian", ["Paris"], SQUAD, within=True) == 0.0
    assert exact_match("anything", [""], SQUAD, within=True) == 0.0


@pytest.mark.parametrize("kind", Normalisation)
def test_an_answer_of_which_nothing_is_left_equals_no_gold_answer_of_which_nothing_is_left(kind: Normalisation) -> None:
    """`A` of a multiple choice is an article; an empty answer must not be right for it."""
    for gold in ("A", "%", "∞"):
        assert exact_match(gold, [gold], kind) == best_f1(gold, [gold], kind) == 1.0
        for answer in ("", " ", "?", "the", "..."):
            assert exact_match(answer, [gold], kind) == best_f1(answer, [gold], kind) == 0.0


def test_a_megabyte_is_read_to_its_bound_and_quickly() -> None:
    began = time.process_time()
    for text in ("word " * 200_000, "王" * 1_000_000, "é" * 1_000_000, "1," * 500_000):
        assert best_f1(text, ["王小明", "a word"], UNICODE) < 0.01
        assert best_f1(text, ["a word"], SQUAD) < 0.01
    assert time.process_time() - began < 4.0


def test_the_box_of_an_answer_is_opened_and_no_answer_scores_zero(write: Any) -> None:
    for reward in (f1(QaConfig()), em(QaEmConfig())):
        group = [write.answer(r"It is \boxed{Paris}.", "Paris"), write.answer(None, "Paris", id="1")]
        assert [score.value for score in asyncio.run(reward(group))] == [1.0, 0.0]  # type: ignore[arg-type, union-attr]


@pytest.mark.parametrize("kind", Normalisation)
def test_words_in_wrappers_of_latex_are_words(write: Any, kind: Normalisation) -> None:
    answers = (r"\boxed{\text{New York}}", r"\boxed{\textbf{\text{New York}}}", r"\mathrm{New~York}", r"New\ York")
    group = [write.answer(answer, "New York", id=answer) for answer in answers]
    for reward in (f1(QaConfig(normalisation=kind)), em(QaEmConfig(normalisation=kind))):
        assert [score.value for score in asyncio.run(reward(group))] == [1.0] * 4  # type: ignore[arg-type, union-attr]


@pytest.mark.parametrize("kind", Normalisation)
def test_the_rewards_keep_the_contract(kind: Normalisation) -> None:
    check_reward(f1(QaConfig(normalisation=kind)))
    check_reward(em(QaEmConfig(normalisation=kind, within=True)))
