"""docs/conformance.md is true: its examples run and print what it says, and its tables name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ramet.testing

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "conformance.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]


def test_the_test_of_a_plugin_passes() -> None:
    names: dict[str, object] = {}
    exec(PYTHON[0], names)
    test = names["test_the_plugin_conforms"]
    assert callable(test)
    test()


def test_the_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    exec(PYTHON[1], {})
    (said,) = [text for language, text in BLOCKS if language == "text"]
    assert capsys.readouterr().out == said


def test_the_page_names_every_check_and_double_and_no_other() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([A-Za-z]\w*)(?:\(.*?\))?`", row.split("|")[1])}
    assert named == set(ramet.testing.__all__) - {"check_plugin", "EchoTool", "ScriptedContext"}
