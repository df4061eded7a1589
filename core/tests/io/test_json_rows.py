"""Rows of JSON files: lines and arrays give the same values, and every problem has a row number counted from 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet.io.json_rows import DataRow, UnreadableFile, read_json_rows

BOM = b"\xef\xbb\xbf"


@pytest.fixture
def read(tmp_path: Path):
    def rows(content: bytes) -> list[DataRow]:
        (tmp_path / "rows").write_bytes(content)
        return list(read_json_rows(tmp_path / "rows"))

    return rows


@pytest.mark.parametrize("bom", [b"", BOM])
@pytest.mark.parametrize("before", [b"", b" \r\n\t", b"\n" * 5000])
def test_lines_and_arrays_hold_the_same_rows(read, bom: bytes, before: bytes):
    values = [{"n": 1, "text": "größer"}, {"n": [None, {"x": 0.5}]}]
    lines = b"\r\n".join(json.dumps(one).encode() for one in values)
    arrays = [json.dumps(values).encode(), json.dumps(values, indent=2, ensure_ascii=False).encode() + b"\n"]
    assert [row.values for row in read(bom + before + lines)] == values
    for array in arrays:
        assert read(bom + before + array) == [
            DataRow(number=number, values=one) for number, one in enumerate(values, start=1)
        ]


def test_rows_of_lines_count_blank_lines_too_as_editors_do(read):
    assert [row.number for row in read(BOM + b'\n{"a": 1}\n\n  \n{"a": 2}\n')] == [2, 5]


def test_an_empty_file_and_an_empty_array_have_no_rows(read):
    assert read(b"") == read(BOM) == read(b" \n") == read(b"[]") == read(BOM + b"[ ]\n") == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'"text"', "not a JSON object: 'text'"),
        (b"{", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1), in '{'"),
        (b'{"a": -Infinity}', "not JSON: -Infinity is not JSON, in '{\"a\": -Infinity}'"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7 of the line"),
        (b'{"a": ' + b"[" * 90 + b"]" * 90 + b"}", "nested more than 64 levels deep"),
        (b'{"a": ' + b"[" * 90_000 + b"]" * 90_000 + b"}", "nested more than 64 levels deep"),
    ],
)
def test_a_bad_line_is_a_row_with_a_problem_and_the_others_are_read(read, line: bytes, problem: str):
    assert read(b'{"a": 1}\n' + line + b'\n{"a": 2}') == [
        DataRow(number=1, values={"a": 1}),
        DataRow(number=2, values={}, problem=problem),
        DataRow(number=3, values={"a": 2}),
    ]


@pytest.mark.parametrize(
    ("element", "problem"),
    [
        (b"7", "not a JSON object: 7"),
        (b'{"a": {"b": [NaN]}}', "not JSON: NaN is not JSON"),
        (b'{"a": ' + b"[" * 90 + b"]" * 90 + b"}", "nested more than 64 levels deep"),
    ],
)
def test_a_bad_element_is_a_row_with_a_problem_and_the_others_are_read(read, element: bytes, problem: str):
    assert read(b'[{"a": 1},\n' + element + b',\n{"a": "NaN"}]') == [
        DataRow(number=1, values={"a": 1}),
        DataRow(number=2, values={}, problem=problem),
        DataRow(number=3, values={"a": "NaN"}),
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'[{"a": 1},\n {"a": 2}', "Expecting ',' delimiter: line 2 column 10 (char 20)"),
        (b'[1, 2]\n{"a": 2}', "Extra data: line 2 column 1 (char 7)"),
        (b'[{"a": "\xff"}]', "not UTF-8 at byte 8"),
        (b"[" * 100_000, "nested more than 64 levels deep"),
    ],
)
def test_an_array_that_cannot_be_read_to_its_end_gives_no_rows(read, content: bytes, problem: str):
    with pytest.raises(UnreadableFile) as caught:
        read(content)
    assert str(caught.value) == f"not a readable JSON array: {problem}"


def test_a_first_row_that_is_nested_too_deep_says_so(read):
    deep = b'{"a": ' + b"[" * 90 + b"]" * 90 + b"}"
    assert [row.problem for row in read(deep)] == ["nested more than 64 levels deep"]


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b'{\n "data": [\n  {"a": 1}\n ]\n}\n', "; its key 'data' may have the rows"),
        (b'\n{\n "a": 1,\n "b": "x"\n}', ""),
        (b'{"a": [],\n "b": []}', ""),
    ],
)
def test_one_object_over_several_lines_has_no_rows(read, content: bytes, where: str):
    with pytest.raises(UnreadableFile) as caught:
        read(content)
    text = "one JSON object; rows are one object on each line, or one array of objects"
    assert str(caught.value) == text + where
