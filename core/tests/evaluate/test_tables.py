from __future__ import annotations

from typing import Any

import pytest

from ramet.evaluate.tables import RESULT_COLUMNS, results_cells


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
