"""Sizes: the algorithms of ARPO and AEPO, and the small branch policies, stay small."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Lines that hold code: no blank line, comment or docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            text = node.body[0]
            lines.difference_update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(lines)


def test_only_code_is_counted() -> None:
    source = '"""Two\nlines."""\n\nx = (  # one\n    1,\n)\n\n\ndef f():\n    """Text."""\n    # none\n'
    source += '    return """a\nb"""\n'
    assert code_lines(source) == 6


@pytest.mark.parametrize(("plugin", "most"), [("arpo", 150), ("aepo", 250)])
def test_the_algorithm_of_a_plugin_is_small(plugin: str, most: int) -> None:
    """Without its options (`config.py`) and what restores the released behaviour (`release/`)."""
    folder = ROOT / f"plugins/{plugin}/src/ramet_{plugin}"
    files = [path for path in sorted(folder.glob("*.py")) if path.name != "config.py"]
    assert len(files) > 2
    assert sum(code_lines(path.read_text(encoding="utf-8")) for path in files) <= most


@pytest.mark.parametrize("name", ["value_guided", "token_entropy", "stored_prefix"])
def test_a_small_branch_policy_is_a_file_of_under_80_lines(name: str) -> None:
    path = ROOT / f"core/src/ramet/rollout/branching/{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80
