"""F16: data files that are damaged. Found before the run starts, with file, row and column; bad rows may be skipped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from ramet.config.compose import compose
from ramet.errors import ConfigErrors
from ramet.train.prepare import PreparedRun, prepare

ROWS, BAD = 8000, 7312  # rows are counted from 1


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [{"prompt": f"task {i}", "answer": str(i)} for i in range(1, ROWS + 1)]


@pytest.fixture
def prepared(workspace) -> Callable[..., PreparedRun]:
    """What `ramet train` does before it writes anything."""

    def with_data(file: Path, *more: str) -> PreparedRun:
        return prepare(compose(workspace.overrides("damaged", f"data.train=[{file}]", *more), job="train"))

    return with_data


def problems(prepared: Callable[..., PreparedRun], file: Path) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        prepared(file)
    return caught.value.problems


def jsonl_with_a_wrong_type(file: Path, rows: list[dict[str, Any]]) -> str:
    rows[BAD - 1] = {"prompt": 7312, "answer": "a"}
    file.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "column prompt: expected a text that is not empty, got 7312"


def jsonl_with_a_torn_line(file: Path, rows: list[dict[str, Any]]) -> str:
    lines = [json.dumps(row) + "\n" for row in rows]
    lines[BAD - 1] = lines[BAD - 1][:12] + "\n"
    file.with_suffix(".jsonl").write_text("".join(lines))
    return "not JSON: Unterminated string"


def parquet_with_a_null(file: Path, rows: list[dict[str, Any]]) -> str:
    rows[BAD - 1] = {"prompt": None, "answer": "a"}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return "column prompt: expected a text that is not empty, got None"


def parquet_with_bytes_that_are_no_text(file: Path, rows: list[dict[str, Any]]) -> str:
    table = pyarrow.Table.from_pylist(rows)
    texts = [row["prompt"].encode() for row in rows]
    texts[BAD - 1] = b"task \xff\xfe"
    as_bytes = pyarrow.array(texts, pyarrow.binary())
    column = pyarrow.Array.from_buffers(pyarrow.string(), ROWS, as_bytes.buffers())  # nobody checks that it is UTF-8
    pyarrow.parquet.write_table(table.set_column(0, "prompt", column), file)
    return "column prompt is not UTF-8: invalid start byte in b'task \\xff\\xfe'"


DAMAGES = [
    jsonl_with_a_wrong_type,
    jsonl_with_a_torn_line,
    parquet_with_a_null,
    parquet_with_bytes_that_are_no_text,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_bad_row_of_thousands_is_named_or_skipped_and_counted(workspace, prepared, rows, tmp_path, damage):
    """F16."""
    what = damage(tmp_path / "data.parquet", list(rows))
    [file] = tmp_path.iterdir()
    [problem] = problems(prepared, file)
    assert problem.startswith(f"{file}, row {BAD}")
    assert what in problem
    assert not (workspace.runs / "damaged").exists()
    found = prepared(file, "data.on_bad_row=skip")
    assert len(found.tasks) == ROWS - 1
    assert found.data["train"].skipped == 1
    assert f"data/{BAD - 1}" not in {task.id for task in found.tasks}


def cut_short(whole: bytes) -> bytes:
    return whole[: len(whole) // 2]


def without_its_end(whole: bytes) -> bytes:
    return whole[:-1]


def with_a_damaged_page(whole: bytes) -> bytes:
    return whole[:100] + bytes(byte ^ 0x55 for byte in whole[100:200]) + whole[200:]


@pytest.mark.parametrize("damage", [cut_short, without_its_end, with_a_damaged_page])
@pytest.mark.parametrize("on_bad_row", ["error", "skip"])
def test_a_damaged_parquet_file_is_named_and_never_skipped(workspace, prepared, rows, tmp_path, damage, on_bad_row):
    """F16: what cannot be read may hold anything, so it is no matter of skipping rows."""
    file = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows[:500]), file)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ConfigErrors, match=r"data\.parquet, after row 0: not a readable "):
        prepared(file, f"data.on_bad_row={on_bad_row}")
