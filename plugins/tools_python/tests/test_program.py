"""What a program prints, and how its errors look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet_tools_python.inside.program import compile_program

GOLDEN = Path(__file__).resolve().parents[3] / "tests" / "golden" / "values" / "tools.jsonl"


def _golden(function: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["function"] == f"python_tool.{function}"]


def test_last_expressions_are_printed_as_in_the_golden_rows() -> None:
    rows = _golden("_preprocess_code")
    assert rows
    for row in rows:
        code, rewritten = row["input"]["code"], row["output"]
        try:
            expected = compile(rewritten, "<python>", "exec").co_code
        except SyntaxError:
            with pytest.raises(SyntaxError):
                compile_program(code)
            continue
        assert compile_program(code).co_code == expected, code


def test_output_is_that_of_the_golden_rows(bench: Any) -> None:
    """Differences on purpose: the file is called <python>, lines of source are shown, silence is named."""
    rows = [row for row in _golden("execute") if "执行" not in row["output"]]
    assert rows
    results = bench.results(*(row["input"]["code"] for row in rows))
    for row, result in zip(rows, results, strict=True):
        expected = row["output"]
        if result.error and expected:
            assert result.text.splitlines()[-1] == expected.splitlines()[-1]
        elif not result.error:
            assert result.text == (expected or "(no output)")


def test_line_numbers_and_source_lines_stay_those_of_the_program(bench: Any) -> None:
    text = bench.text("# comment\nx = 0\n\n1 / x")
    assert text.startswith('Traceback (most recent call last):\n  File "<python>", line 4, in <module>\n    1 / x\n')
    assert text.endswith("ZeroDivisionError: division by zero")


def test_tracebacks_show_only_frames_of_the_program(bench: Any) -> None:
    program = "import json\ntry:\n    json.loads('x')\nexcept ValueError as e:\n    raise KeyError('k') from e"
    text = bench.text(program)
    assert text.count("File ") == text.count('File "<python>"') == 2
    assert "JSONDecodeError" in text and text.endswith("KeyError: 'k'")


def test_syntax_errors_name_the_line_and_mark_the_place(bench: Any) -> None:
    assert (
        bench.text("y = 1\nx = = 3") == '  File "<python>", line 2\n    x = = 3\n        ^\nSyntaxError: invalid syntax'
    )


def test_output_before_an_error_is_kept(bench: Any) -> None:
    result = bench.results("print('so far')\nraise ValueError('bad')")[0]
    assert result.error and result.text.startswith("so far\nTraceback") and result.text.endswith("ValueError: bad")


def test_an_exit_code_is_an_error_and_its_message_is_shown(bench: Any) -> None:
    silent, loud, fine = bench.results("import sys; sys.exit(3)", "raise SystemExit('no data')", "raise SystemExit")
    assert (silent.error, silent.text) == (True, "[the program ended with exit code 3]")
    assert (loud.error, loud.text) == (True, "no data")
    assert (fine.error, fine.text) == (False, "(no output)")


def test_a_long_sum_runs_although_its_tree_is_too_deep(bench: Any) -> None:
    assert bench.text("x = " + "+".join(["1"] * 1500) + "\nprint(x)") == "1500"


def test_classes_of_the_program_pickle_and_futures_do_not_leak_in(bench: Any) -> None:
    program = "import pickle\nclass A:\n    x: int = 3\nprint(pickle.loads(pickle.dumps(A())).x, A.__annotations__)"
    assert bench.text(program) == "3 {'x': <class 'int'>}"


def test_the_order_of_sets_is_the_same_in_every_interpreter(bench: Any) -> None:
    program = "{'one', 'two', 'three', 'four', 'five'}"
    assert bench.text(program) == bench.text(program)


def test_a_trace_function_of_the_program_does_not_reach_the_harness(bench: Any) -> None:
    program = "import sys\ndef trace(*a): raise SystemExit(7)\nprint('end')\n_ = sys.settrace(trace)"
    result = bench.results(program)[0]
    assert (result.error, result.text) == (False, "end")
