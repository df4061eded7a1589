"""Both layouts of a data file, told apart by themselves; the corrupted `\\boxed`; explicit columns win."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from ramet.config.schema import OnBadRow
from ramet.data.layout import Columns, repair
from ramet.data.tasks import load_tasks
from ramet.errors import ConfigErrors

CORRUPT = "in \boxed{} with"
PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "data" / "rl"


def published_row(question: str, answer: str | None = "42") -> dict[str, Any]:
    """A row as ARPO's files hold it."""
    return {
        "data_source": "DR_mix",
        "prompt": [{"content": CORRUPT, "role": "system"}, {"content": question, "role": "user"}],
        "ability": None,
        "reward_model": {"ground_truth": answer},
        "extra_info": {"index": 0, "question": question, "split": "train"},
        "metadata": None,
    }


def parquet(path: Path, rows: list[dict[str, Any]]) -> str:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def json_lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(("write", "name"), [(parquet, "d.parquet"), (json_lines, "d.jsonl")])
def test_a_published_row_needs_no_setting(tmp_path: Path, write: Any, name: str):
    task = load_tasks([write(tmp_path / name, [published_row("6*7?")])]).tasks[0]
    assert (task.answer, task.data_source, task.tools, task.question) == (("42",), "DR_mix", None, "6*7?")
    assert [message.role for message in task.prompt] == ["system", "user"]
    assert task.metadata["ability"] is None and task.metadata["metadata"] is None


def test_columns_that_are_null_in_every_row_count_as_absent(tmp_path: Path):
    row = {**published_row("q"), "data_source": None, "tools": None}
    task = load_tasks([parquet(tmp_path / "d.parquet", [row])]).tasks[0]
    assert (task.data_source, task.tools) == ("d", None)


def test_both_layouts_may_stand_in_one_file_of_json_lines(tmp_path: Path):
    path = json_lines(tmp_path / "d.jsonl", [published_row("q"), {"prompt": "r", "answer": "7", "tools": ["python"]}])
    assert [task.answer for task in load_tasks([path]).tasks] == [("42",), ("7",)]


def test_the_column_answer_comes_before_the_published_one_and_a_named_column_before_both(tmp_path: Path):
    path = json_lines(tmp_path / "d.jsonl", [{**published_row("q"), "answer": "flat", "other": "named"}])
    assert load_tasks([path]).tasks[0].answer == ("flat",)
    assert load_tasks([path], Columns(answer="other")).tasks[0].answer == ("named",)
    assert load_tasks([path], Columns(answer="reward_model.ground_truth")).tasks[0].answer == ("42",)


def test_an_empty_gold_answer_is_a_bad_row_that_can_be_skipped(tmp_path: Path):
    path = json_lines(tmp_path / "d.jsonl", [published_row("q"), published_row("r", " "), published_row("s", None)])
    with pytest.raises(ConfigErrors) as caught:
        load_tasks([path])
    empty, none = caught.value.problems
    assert empty.startswith(f"{path}, row 2: column reward_model.ground_truth: ") and empty.endswith(" ' '")
    assert none.startswith(f"{path}, row 3: column reward_model.ground_truth: ") and none.endswith(" None")
    assert load_tasks([path], on_bad_row=OnBadRow.SKIP).skipped == 2


def test_a_file_without_any_answer_says_which_columns_would_do(tmp_path: Path):
    path = json_lines(tmp_path / "d.jsonl", [{"prompt": "q", "solution": "a"}])
    with pytest.raises(ConfigErrors) as caught:
        load_tasks([path])
    assert caught.value.problems == [
        f"{path}: no column 'answer' or 'reward_model.ground_truth'; found prompt, solution; "
        "name it with data.columns.answer"
    ]


def test_the_corrupted_box_is_put_right_counted_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = json_lines(tmp_path / "d.jsonl", [published_row("q"), {"prompt": "r", "answer": "a"}])
    with caplog.at_level(logging.WARNING):
        found = load_tasks([path])
    assert found.repaired == 1
    assert found.tasks[0].prompt[0].content == "in \\boxed{} with"
    assert "repaired a corrupted \\boxed in 1 of 2 tasks" in caplog.text


def test_repair_changes_nothing_else():
    row = {"a": ["x\by", 3, None], "b": {"c": True}}
    assert repair(row) is row
    assert repair({"a": ["\boxed{1}", "\\boxed{2}"]}) == {"a": ["\\boxed{1}", "\\boxed{2}"]}


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="needs ../shared/data/rl")
@pytest.mark.parametrize(("name", "rows"), [("valid", 180), ("hard_search_1k", 1071)])
def test_the_published_files_load_whole(name: str, rows: int):
    found = load_tasks([str(PUBLISHED / f"{name}.parquet")])
    assert (len(found.tasks), found.repaired, found.skipped) == (rows, rows, 0)
    assert not any("\b" in message.content for task in found.tasks for message in task.prompt)
