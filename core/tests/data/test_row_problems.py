from __future__ import annotations

from ramet.data.row_problems import RowProblem, grouped


def problem(file: str, row: int, reason: str = "bad") -> RowProblem:
    return RowProblem(file=file, row=row, reason=reason)


def test_a_problem_names_file_row_and_reason() -> None:
    assert str(problem("a.jsonl", 3)) == "a.jsonl, row 3: bad"


def test_rows_of_one_reason_are_one_line_in_the_order_of_reasons() -> None:
    problems = [problem("a", 3), problem("a", 4, "worse"), problem("a", 17), problem("b", 2)]
    assert grouped(problems) == ["a, rows 3, 17; b, row 2: bad", "a, row 4: worse"]


def test_after_some_rows_the_others_are_counted() -> None:
    assert grouped([problem("a", row) for row in range(1, 13)]) == ["a, rows 1, 2, 3; and 9 more: bad"]
    assert grouped([problem("a", row) for row in (1, 2)], shown=1) == ["a, row 1; and 1 more: bad"]
    assert grouped([]) == []
