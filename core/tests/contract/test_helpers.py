"""Helpers: a function becomes a tool whose model can be wrong; a file becomes tasks whose rows can be wrong."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional
from urllib.error import URLError

import pytest

from ramet import ConfigError, Tool, ToolCall, ToolError, from_jsonl, function_tool, json_rows, run_blocking
from ramet.helpers import is_outage
from ramet.testing import check_tool


def weather(city: str, days: int = 1, unit: str | None = None, old: Optional[float] = None) -> str:  # noqa: UP045
    """The weather of a city.

    Days are counted from today.
    """
    return f"{city} {days} {unit} {old}"


def call(tool: Tool, **arguments: Any) -> str:
    return asyncio.run(tool(ToolCall(name=tool.schema.name, arguments=arguments))).text


def test_signature_and_docstring_become_the_schema() -> None:
    schema = function_tool(weather).schema
    assert schema.name == "weather"
    assert schema.description == "The weather of a city.\n\nDays are counted from today."
    assert schema.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"type": "string"},
            "old": {"type": "number"},
        },
        "required": ["city"],
    }
    assert function_tool(weather, name="forecast").schema.name == "forecast"


def test_the_return_value_becomes_the_text() -> None:
    assert call(function_tool(weather), city="Ulm", days=2) == "Ulm 2 None None"


def test_an_integer_is_a_number_and_none_is_taken_where_it_is_allowed() -> None:
    assert call(function_tool(weather), city="Ulm", unit=None, old=3) == "Ulm 1 None 3"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"city": 7},
        {"city": None},
        {"city": "Ulm", "days": None},
        {"city": "Ulm", "days": "two"},
        {"city": "Ulm", "days": True},
        {"city": "Ulm", "days": 1.5},
        {"city": "Ulm", "planet": "Mars"},
    ],
)
def test_wrong_arguments_are_the_models_mistake(arguments: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match="weather: "):
        call(function_tool(weather), **arguments)


def test_a_function_tool_passes_the_conformance_check() -> None:
    check_tool(function_tool(weather), name="weather")


def test_an_async_function_runs_on_the_loop_and_a_plain_one_beside_it() -> None:
    async def on_loop() -> str:
        """Where am I?"""
        return threading.current_thread().name

    def beside() -> str:
        """Where am I?"""
        return threading.current_thread().name

    assert call(function_tool(on_loop)) == threading.main_thread().name
    assert call(function_tool(beside)) != threading.main_thread().name


def test_functions_that_hang_hold_up_neither_other_calls_nor_the_end() -> None:
    release = threading.Event()

    def work(seconds: float) -> str:
        """Block the thread."""
        release.wait(seconds)
        return "done"

    async def main() -> str:
        tool = function_tool(work)
        hanging = [asyncio.create_task(tool(ToolCall(name="work", arguments={"seconds": 60}))) for _ in range(100)]
        await asyncio.sleep(0)
        answer = await asyncio.wait_for(tool(ToolCall(name="work", arguments={"seconds": 0})), 10)
        for task in hanging:
            task.cancel()
        return answer.text

    started = time.monotonic()
    assert asyncio.run(main()) == "done"
    assert time.monotonic() - started < 20
    assert all(t.daemon for t in threading.enumerate() if t.name == "ramet-tool")  # none holds up the exit
    release.set()


def test_a_function_that_leaves_the_program_fails_its_call_only() -> None:
    def leaves() -> str:
        """Leave."""
        raise SystemExit(3)

    with pytest.raises(ToolError, match="SystemExit: 3"):
        call(function_tool(leaves))


def test_errors_of_the_function_pass() -> None:
    def fails(kind: str) -> str:
        """Fail."""
        raise ToolError("no such city") if kind == "tool" else OSError("disk")

    with pytest.raises(ToolError, match="no such city"):
        call(function_tool(fails), kind="tool")
    with pytest.raises(OSError, match="disk"):
        call(function_tool(fails), kind="other")


def unannotated(x):  # type: ignore[no-untyped-def]
    return x


def either(x: int | str) -> str:
    return str(x)


def several(*x: int) -> str:
    return str(x)


def anything(**x: int) -> str:
    return str(x)


def by_position(x: int, /) -> str:
    return str(x)


def only_none(x: None) -> str:
    return str(x)


@pytest.mark.parametrize("function", [unannotated, either, several, anything, by_position, only_none])
def test_a_signature_that_a_model_cannot_fill_is_refused(function: Callable[..., str]) -> None:
    with pytest.raises(TypeError, match="parameter 'x'"):
        function_tool(function)


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "sums.jsonl"
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(("last", "outage"), [(KeyError("gold"), False), (ConnectionError(), True)])
def test_causes_in_a_circle_are_looked_at_once(last: Exception, outage: bool) -> None:
    itself, first = RuntimeError("itself"), RuntimeError("first")
    itself.__cause__ = itself
    assert not is_outage(itself)
    group, unreachable = ExceptionGroup("group", [last]), URLError(first)  # type: ignore[arg-type]
    first.__cause__, last.__cause__ = group, first
    assert is_outage(first) is is_outage(group) is is_outage(last) is is_outage(unreachable) is outage


def test_rows_become_tasks_with_stable_ids(tmp_path: Path) -> None:
    path = written(tmp_path, {"question": "1 + 1?", "answer": 2}, {"question": "Pi?", "answer": ["3.14", "22/7"]})
    one, two = from_jsonl(path)
    assert (one.id, one.question, one.answer, one.data_source) == ("sums/0", "1 + 1?", ("2",), "sums")
    assert (two.id, two.answer) == ("sums/1", ("3.14", "22/7"))
    assert list(from_jsonl(path)) == [one, two]


@pytest.mark.parametrize(("limit", "n"), [(None, 3), (0, 0), (2, 2), (9, 3)])
def test_a_limit_takes_the_first_rows(tmp_path: Path, limit: int | None, n: int) -> None:
    path = written(tmp_path, *({"question": f"{i}?", "answer": i} for i in range(3)))
    assert [task.id for task in from_jsonl(path, limit=limit)] == [f"sums/{i}" for i in range(n)]


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    path = written(tmp_path, {"problem": "1 + 1?", "solution": "2"})
    (task,) = from_jsonl(path, question="problem", answer="solution")
    assert (task.question, task.answer) == ("1 + 1?", ("2",))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{broken\n", "not JSON"),
        ([1, 2], r".*: \[1, 2\]"),
        ({"question": "2?"}, "no key 'answer'.*found question"),
        ({"question": None, "answer": "2"}, "no key 'question'"),
    ],
)
def test_a_bad_row_names_file_and_row(tmp_path: Path, row: Any, message: str) -> None:
    path = written(tmp_path, {"question": "1?", "answer": "1"}, row)
    with pytest.raises(ConfigError, match=f"sums.jsonl, row 2: {message}"):
        list(from_jsonl(path))


def test_a_json_array_and_a_byte_order_mark_are_read_as_lines_are(tmp_path: Path) -> None:
    rows = [{"question": "1?", "answer": "1"}, {"question": "2?", "answer": "2"}]
    lines = written(tmp_path, *rows)
    tasks = list(from_jsonl(lines))
    lines.write_text(json.dumps(rows[0]) + "\n\n" + json.dumps(rows[1]), encoding="utf-8-sig")
    assert [task.id for task in from_jsonl(lines)] == ["sums/0", "sums/2"]  # ids follow the lines
    lines.write_text(json.dumps(rows, indent=1), encoding="utf-8-sig")
    assert list(from_jsonl(lines)) == tasks
    lines.write_text("[{},")
    with pytest.raises(ConfigError, match=r"sums\.jsonl: not a readable JSON array: "):
        list(from_jsonl(lines))


def test_a_row_that_is_no_text_names_file_and_row(tmp_path: Path) -> None:
    path = tmp_path / "bytes.jsonl"
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(ConfigError, match=r"bytes.jsonl, row 1: not UTF-8 at byte 0"):
        list(from_jsonl(path))


def test_rows_are_objects_with_numbers_as_editors_count(tmp_path: Path) -> None:
    path = written(tmp_path, {"a": 1}, "\n", {"b": [2]})
    assert list(json_rows(path)) == [(1, {"a": 1}), (3, {"b": [2]})]
    with pytest.raises(ConfigError, match=r"^no file '.*absent\.jsonl'$") as caught:
        list(json_rows(tmp_path / "absent.jsonl"))
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file .*absent.jsonl"):
        list(from_jsonl(tmp_path / "absent.jsonl"))


def test_what_blocks_runs_beside_the_loop_and_is_given_up_when_it_is_cancelled() -> None:
    release = threading.Event()

    async def main() -> tuple[str, float]:
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await run_blocking(release.wait, timeout=20)
        return await run_blocking("{}-{b}".format, "a", b=2), time.monotonic() - started

    text, seconds = asyncio.run(main())
    release.set()
    assert text == "a-2"
    assert seconds < 5


def test_what_blocks_may_raise() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_blocking(divmod, 1, 0))
