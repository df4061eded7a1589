from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet.cli.app import main
from ramet.errors import ConfigError
from ramet.evaluate.compare import bootstrap, compare, load_results
from ramet.evaluate.tables import TextTable, comparison_cells, pair_cells


def body(scores: dict[str, list[float | None]], *, benchmark: str = "own", metric: str = "accuracy") -> dict[str, Any]:
    rollouts = {id: [{"scores": {metric: one}} for one in row] for id, row in scores.items()}
    tasks = [{"task": id, "gold": [f"of {id}"], "rollouts": found} for id, found in rollouts.items()]
    return {"results": [{"name": benchmark, "metrics": [{"metric": metric}], "tasks": tasks}]}


A = body({"a": [1.0, 0.0], "b": [0.0], "c": [1.0], "d": [0.5], "gone": [1.0], "e": [None]})
B = body({"a": [1.0, 1.0], "b": [1.0], "c": [0.0], "d": [0.5], "new": [0.0], "e": [1.0]})


def test_tasks_are_paired_and_those_won_and_lost_are_listed() -> None:
    (found,) = compare(A, B)
    assert (found.before, found.after, found.difference) == (0.5, 0.625, 0.125)
    assert [(p.task, p.before, p.after) for p in found.won] == [("b", 0.0, 1.0), ("a", 0.5, 1.0)]
    assert [p.task for p in found.lost] == ["c"]
    assert (found.n_tasks, found.left_out) == (4, 3)  # gone and new are of one of them, e was not judged in A
    assert found.low is not None and found.high is not None and found.low < 0.125 < found.high
    assert not found.is_clear


def test_a_task_with_other_gold_answers_is_another_task() -> None:
    """Ids may be numbers of rows: of two files they name other questions."""
    other = body({"a": [1.0], "b": [1.0]})
    other["results"][0]["tasks"][1]["gold"] = ["of another file"]
    (found,) = compare(A, other)
    assert (found.n_tasks, found.left_out, [pair.task for pair in found.won]) == (1, 4, ["a"])


def test_the_interval_is_that_of_the_paired_differences() -> None:
    assert bootstrap([0.5]) == (None, None)
    assert bootstrap([0.25] * 9) == (0.25, 0.25)
    assert bootstrap([0.0, 1.0] * 50) == bootstrap([0.0, 1.0] * 50)
    low, high = bootstrap([0.0, 1.0] * 50)
    assert low == pytest.approx(0.4, abs=0.02) and high == pytest.approx(0.6, abs=0.02)  # 0.5 ± 1.96 x 0.05
    clear = compare(body({str(i): [0.0] for i in range(20)}), body({str(i): [1.0] for i in range(20)}))[0]
    assert clear.is_clear


def test_the_tables_say_the_same_in_markdown() -> None:
    found = compare(A, B)
    assert comparison_cells(found, "a.json", "b.json").markdown().splitlines()[2:5] == [
        "| benchmark | metric | A | B | B - A | 95 % interval | tasks | won | lost |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        f"| own | accuracy | 0.500 | 0.625 | +0.125 | {found[0].low:+.3f} to {found[0].high:+.3f} | 4 (3 left out) "
        "| 2 | 1 |",
    ]
    assert pair_cells(found[0]).markdown().splitlines()[-2:] == [
        "| b | 0.000 | 1.000 | c | 1.000 | 0.000 |",
        "| a | 0.500 | 1.000 |  |  |  |",
    ]
    assert "a\\|b" in TextTable(columns=["x"], rows=[["a|b"]]).markdown()


def test_results_with_nothing_in_common_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        compare(A, body({"a": [1.0]}, benchmark="other"))
    assert str(caught.value) == ("the results have no benchmark and metric in common: they are of own and other")
    with pytest.raises(ConfigError) as caught:
        compare(A, body({"z": [1.0]}))
    assert str(caught.value) == (
        "benchmark own, metric accuracy: the two results have no judged task in common; they are of other tasks, or "
        "nothing was judged"
    )


def test_a_result_is_a_file_or_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "runs/before/results.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"schema": 1, **A}))
    for given in (file, file.parent, Path("before")):
        assert load_results(given)[1]["results"] == A["results"]
    with pytest.raises(ConfigError) as caught:
        load_results(Path("after"))
    assert str(caught.value) == (
        "no results 'after': neither a results file, nor a run's directory or name under runs/ with a results.json "
        f"(working directory: {tmp_path})"
    )


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, one in (("a", A), ("b", B)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"schema": 1, **one}))
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["metrics"][0]["difference"] == 0.125
    assert main(["compare"]) == 1
    assert "compare: give one or more results, as in `ramet compare runs/before runs/after`" in capsys.readouterr().err
