"""`docs/bad_input.md` stays true: every test that it names exists, and no kind of bad input is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "bad_input.md"
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
REFERENCE = re.compile(r"`([\w/]+\.py)::(\w+)`")


def defined_in(file: str) -> set[str]:
    path = ROOT / file
    nodes = ast.walk(ast.parse(path.read_text())) if path.is_file() else ()
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_test_that_the_page_names_exists():
    named = [(file, test) for *_, cell in ROWS for file, test in REFERENCE.findall(cell)]
    known = {file: defined_in(file) for file, _ in named}
    assert [f"{file}::{test}" for file, test in named if test not in known[file]] == []
    assert len(named) > 100


def test_rows_are_numbered_without_a_gap_and_each_has_a_test_or_says_why_not():
    assert [int(number) for number, *_ in ROWS] == list(range(1, len(ROWS) + 1))
    for number, _, happens, cell in ROWS:
        assert REFERENCE.search(cell) or re.search(r"cannot happen|^as \d+$", happens), f"row {number}"
