from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from ramet.cli.app import main
from ramet.errors import ConfigError
from ramet.evaluate.compare import bootstrap, compare, interval
from ramet.evaluate.files import load_results
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
    assert (found.low, found.high, found.is_clear) == (None, None, False)  # four tasks show nothing


def test_a_task_with_other_gold_answers_is_another_task() -> None:
    """Ids may be numbers of rows: of two files they name other questions."""
    other = body({"a": [1.0], "b": [1.0]})
    other["results"][0]["tasks"][1]["gold"] = ["of another file"]
    (found,) = compare(A, other)
    assert (found.n_tasks, found.left_out, [pair.task for pair in found.won]) == (1, 4, ["a"])


def test_the_interval_is_that_of_the_paired_differences() -> None:
    assert bootstrap([0.0, 1.0] * 50) == bootstrap([0.0, 1.0] * 50)
    low, high = bootstrap([0.0, 1.0] * 50)
    assert low == pytest.approx(0.4, abs=0.02) and high == pytest.approx(0.6, abs=0.02)  # 0.5 ± 1.96 x 0.05
    low, high = interval([0.0, 1.0] * 5)
    assert low == pytest.approx(0.5 - 2.262 * 0.16667, abs=1e-3) and high == pytest.approx(1 - low)  # Student's t
    assert interval([0.25] * 30) == (None, None)  # no spread to estimate
    many = range(20)
    clear = compare(body({str(i): [0.0] for i in many}), body({str(i): [float(i < 15)] for i in many}))[0]
    assert clear.is_clear


@pytest.mark.parametrize("n_tasks", [2, 4, 5, 6, 8, 10, 30])
def test_equal_models_get_a_star_about_once_in_twenty(n_tasks: int) -> None:
    """k = 4 and tasks of all difficulties. The bootstrap alone gave 19, 11, 12, 14, 11, 7 and 5 %."""
    rng, runs, stars = random.Random(n_tasks), 1000, 0
    for _ in range(runs):
        chances = [rng.random() for _ in range(n_tasks)]
        low, high = interval([fmean(draw(p, rng) for _ in range(4)) for p in chances])
        stars += low is not None and high is not None and not low <= 0 <= high
    assert stars / runs <= 0.075


def draw(chance: float, rng: random.Random) -> float:
    """The difference of two rollouts, of one model each."""
    return float(rng.random() < chance) - float(rng.random() < chance)


def test_the_tables_say_the_same_in_markdown() -> None:
    found = compare(A, B)
    assert comparison_cells(found, "a.json", "b.json").markdown().splitlines()[2:5] == [
        "| benchmark | metric | A | B | B - A | 95 % interval | tasks | won | lost |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| own | accuracy | 0.500 | 0.625 | +0.125 | - | 4 (3 left out) | 2 | 1 |",
    ]
    assert pair_cells(found[0]).markdown().splitlines()[-2:] == [
        "| b | 0.000 | 1.000 | c | 1.000 | 0.000 |",
        "| a | 0.500 | 1.000 |  |  |  |",
    ]
    assert "comparisons" not in comparison_cells(found, "a", "b").caption
    several = "; 4 comparisons: of equal models one in 20 has a *, so choose the one that decides in advance"
    assert comparison_cells(found, "a", "b", n=4).caption.endswith(several)
    assert "a\\|b" in TextTable(columns=["x"], rows=[["a|b"]]).markdown()


def test_tasks_that_are_not_listed_are_mentioned() -> None:
    names = [str(i) for i in range(11)]
    (found,) = compare(body({name: [0.0] for name in names}), body({name: [1.0] for name in names}))
    table = pair_cells(found)
    assert len(table.rows) == 10 and table.title == "own, accuracy: 11 won, 0 lost"
    assert table.caption == "the 10 largest differences of each; --format json lists all"


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


def test_a_reader_that_leaves_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ramet compare a b | head -1`."""
    for name, one in (("a", A), ("b", B)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"schema": 1, **one}))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as broken:
        monkeypatch.setattr(sys, "stdout", broken)
        assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    assert capsys.readouterr().err == ""


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, one in (("a", A), ("b", B)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"schema": 1, **one}))
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["metrics"][0]["difference"] == 0.125
    assert main(["compare"]) == 1
    assert "compare: give one or more runs, as in `ramet compare runs/before runs/after`" in capsys.readouterr().err
