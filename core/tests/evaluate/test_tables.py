from __future__ import annotations

from typing import Any

import pytest

from ramet.evaluate.tables import RESULT_COLUMNS, print_tables, results_cells


def body(*metrics: str, half_width: float | None) -> dict[str, Any]:
    found = [
        {
            "metric": name,
            "avg": {"mean": 0.5, "half_width": half_width},
            "passes": [],
            "n_judged": 5,
            "n_rollouts": 6,
        }
        for name in metrics
    ]
    return {"model": "one", "k": 1, "results": [{"name": "own", "metrics": found, "tools": {"share_using": None}}]}


def test_rollouts_are_scored_and_those_of_a_judge_are_judged() -> None:
    table = results_cells(body("em", "judge-strict", half_width=0.1))
    assert RESULT_COLUMNS[-1] == "scored"
    assert [row[-1] for row in table.rows] == ["5 of 6", "5 of 6 judged"]


@pytest.mark.parametrize(
    ("half_width", "more"), [(0.0, "; ± 0 where all tasks have the same score"), (0.1, ""), (None, "")]
)
def test_an_interval_without_width_is_explained(half_width: float | None, more: str) -> None:
    assert results_cells(body("em", half_width=half_width)).caption == f"± 95 % interval, clustered by task{more}"


def test_rollouts_without_a_score_show_what_they_could_change() -> None:
    found = body("em", half_width=0.1)
    found["results"][0]["metrics"][0]["bounds"] = [0.4, 0.6]
    table = results_cells(found)
    assert table.rows[0][2] == "0.500 ± 0.100 [0.400, 0.600]"
    assert table.caption.endswith("; [avg@k if rollouts without a score were wrong, if they were right]")


def test_a_low_score_for_want_of_answers_is_explained() -> None:
    found = body("em", half_width=0.1)
    found["results"][0]["ends"] = {"answered": 1, "done": 0, "cut": 8, "unanswered": 39}
    table = results_cells(found)
    cells = dict(zip(RESULT_COLUMNS, table.rows[0], strict=True))
    assert (cells["answered"], cells["cut"]) == ("2%", "17%")
    line = "own: 47 of 48 rollouts ended without an answer, 8 of them cut by the limit of tokens"
    assert table.caption.splitlines()[1:] == [line]
    found["results"][0]["ends"] = {"answered": 0, "done": 48, "cut": 0, "unanswered": 0}  # an environment's
    assert len(results_cells(found).caption.splitlines()) == 1


def test_no_name_of_a_column_is_cut_in_a_terminal_of_80_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = body("accuracy", half_width=0.1)
    found["results"][0]["metrics"][0] |= {"bounds": [0.4, 0.6], "maj": {"mean": 0.5}}
    print_tables([results_cells(found)])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert [name.strip() for name in lines[2].strip("┃").split("┃")] == list(RESULT_COLUMNS)
