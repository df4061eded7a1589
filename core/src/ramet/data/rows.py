"""One row of a data file becomes a task. Nothing is guessed: a value of the wrong kind is a `BadRow`."""

from __future__ import annotations

import json
import math
from typing import Any

from ramet.data.layout import ABSENT, Columns, answer_column, value_at
from ramet.data.tool_schemas import read_tools, without_nulls
from ramet.io.json_rows import DataRow
from ramet.io.json_values import cut
from ramet.types import Message, Task, ToolSchema, user_prompt

ROLES = ("system", "user", "assistant")


class BadRow(Exception):
    """A problem of one row, without its file and number."""


def make_task(row: DataRow, prefix: str, stem: str, columns: Columns) -> Task:
    """The task of one row. `prefix` begins its id where no column names one; `stem` is its source where none is given.

    Raises `BadRow`.
    """
    if row.problem is not None:
        raise BadRow(row.problem)
    values = row.values
    answer = answer_column(values, columns)
    if columns.difficulty is not None:
        _number(value_at(values, columns.difficulty), columns.difficulty)  # it stays in the metadata
    used = {columns.prompt, answer, columns.id, columns.data_source, columns.tools}
    source = _optional(values, columns.data_source)
    tools, schemas = _tools(_optional(values, columns.tools), columns.tools)
    return Task(
        id=f"{prefix}/{row.number - 1}" if columns.id is None else _id(value_at(values, columns.id), columns.id),
        prompt=_prompt(value_at(values, columns.prompt), columns.prompt),
        answer=_answers(_gold(value_at(values, answer), schemas), answer),
        data_source=stem if source is None else _text(source, columns.data_source),
        tools=tools,
        schemas=schemas,
        metadata={name: _json(value) for name, value in values.items() if name not in used},
    )


def _optional(values: dict[str, Any], column: str | None) -> Any:
    value = None if column is None else value_at(values, column)
    return None if value is ABSENT else value


def _bad(column: str | None, what: str, value: Any) -> BadRow:
    shown = "no value" if value is ABSENT else cut(value)
    return BadRow(f"column {column}: {what}, got {shown}")


def _id(value: Any, column: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise _bad(column, "expected a text or a whole number", value)
    return str(value)


def _text(value: Any, column: str | None) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _bad(column, "expected a text that is not empty", value)
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        raise _bad(column, "text with NUL or half a surrogate pair", value)
    return value


def _prompt(value: Any, column: str) -> tuple[Message, ...]:
    if not isinstance(value, list):
        return user_prompt(_text(value, column))
    if len(value) == 1 and isinstance(value[0], list):
        value = value[0]  # BFCL's list of turns, with one turn
    messages = tuple(_message(message, column) for message in value)
    if not messages or messages[-1].role != "user":
        raise _bad(column, "expected chat messages of which the last is the user's", value)
    if any(message.role == "system" for message in messages[1:]):
        raise _bad(column, "expected the system message first", value)
    return messages


def _message(value: Any, column: str) -> Message:
    if not isinstance(value, dict):
        raise _bad(column, "expected messages {role, content}", value)
    present = {name for name, item in value.items() if item is not None}  # parquet fills absent fields with null
    if present != {"role", "content"}:
        raise _bad(column, "expected messages with exactly role and content", value)
    if value["role"] not in ROLES:
        raise _bad(column, f"expected a role of {', '.join(ROLES)}", value["role"])
    return Message(role=value["role"], content=_text(value["content"], column))


def _answers(value: Any, column: str) -> tuple[str, ...]:
    answers = value if isinstance(value, list) else [value]
    if not answers:
        raise _bad(column, "expected at least one answer", value)
    return tuple(_answer(answer, column) for answer in answers)


def _answer(value: Any, column: str) -> str:
    if isinstance(value, str):
        return _text(value, column)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _bad(column, "expected a text, a number, or a list of them", value)
    return str(value)


def _number(value: Any, column: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _bad(column, "expected a number", value)


def _tools(value: Any, column: str | None) -> tuple[tuple[str, ...] | None, tuple[ToolSchema, ...] | None]:
    """Names of configured tools, or the tools that the row itself describes, also as JSON text."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None, None
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, dict) or (isinstance(item, str) and item.lstrip()[:1] in ("[", "{")) for item in items):
        schemas, problems = read_tools(value)
        if problems:
            raise BadRow(f"column {column}: {'; '.join(problems)}")
        return None, schemas
    if not isinstance(value, list):
        raise _bad(column, "expected a list of tool names or of schemas", value)
    return tuple(_text(name, column) for name in value), None


def _gold(value: Any, schemas: tuple[ToolSchema, ...] | None) -> Any:
    """The answer of a row that describes tools: calls, which are objects there, as the JSON text that rewards read. A
    list of lists of calls is several answers.
    """
    if schemas is None:
        return value
    if isinstance(value, list) and value and all(isinstance(item, list) and _are_calls(item) for item in value):
        return [_calls_as_text(item) for item in value]
    return _calls_as_text(value) if _are_calls(value) else value


def _are_calls(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and all(isinstance(item, dict) for item in value))


def _calls_as_text(value: Any) -> str:
    return json.dumps(_json(without_nulls(value)), ensure_ascii=False)


def _json(value: Any) -> Any:
    """Metadata must be JSON: what parquet knows beyond it (dates, decimals, bytes) becomes text, NaN null."""
    if isinstance(value, dict):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
