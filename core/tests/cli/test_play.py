"""What `ramet play` takes for a question, and what it refuses before anything is loaded."""

from __future__ import annotations

import sys

import pytest

from ramet.cli import main
from ramet.cli.play import _is_setting


@pytest.mark.parametrize("text", ["x=2. What is x + 2?", "What is 37*41=", "37*41=", "n=5, so what is 2n?"])
def test_questions_may_hold_equals_signs(text: str) -> None:
    assert not _is_setting(text)


@pytest.mark.parametrize("text", ["run.seed=2", "+tools=[a, b]", "modle.path=my own model", "x=2", "tools=[]"])
def test_keys_with_values_are_settings(text: str) -> None:
    assert _is_setting(text)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["a", "b"], "play: one question, got 2: 'a', 'b'; put it in quotes"),
        ([" "], "play: the question is empty"),
        (["caf\udce9"], "cannot read 'caf\ufffd': not UTF-8 here; set a UTF-8 locale, as in LC_ALL=C.UTF-8"),
        (["x", "data.limits.train=3"], "data.limits.train: `ramet play` "),
        (["x", "data.columns.prompt=q"], "data.columns.prompt: `ramet play` "),
    ],
)
def test_what_cannot_be_played_is_refused(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", *words, "model.path=m"]) == 1
    [error] = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: {problem}")


def test_a_closed_standard_input_has_no_questions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it after `ramet play <&-`
    assert main(["play", "model.path=m"]) == 1
    said = 'error: play: no question, and the standard input is closed; ask one, as in ramet play "QUESTION"\n'
    assert capsys.readouterr().err == said
