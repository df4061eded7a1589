"""Helpers that make small plugins small: a tool from a function, tasks from a JSON-lines file."""

from __future__ import annotations

import asyncio
import inspect
import json
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Union

from ramet.errors import ConfigError, ToolError
from ramet.types import Task, Tool, ToolCall, ToolResult, ToolSchema, user_prompt

_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


class _FunctionTool:
    def __init__(self, function: Callable[..., Any], schema: ToolSchema) -> None:
        self.function = function
        self.schema = schema
        self._signature = inspect.signature(function)

    async def __call__(self, call: ToolCall) -> ToolResult:
        try:
            bound = self._signature.bind(**call.arguments)
        except TypeError as error:
            raise ToolError(f"{self.schema.name}: {error}") from error
        _check_types(self.schema, bound.arguments)
        if inspect.iscoroutinefunction(self.function):
            return ToolResult(text=str(await self.function(*bound.args, **bound.kwargs)))
        return ToolResult(text=str(await asyncio.to_thread(self.function, *bound.args, **bound.kwargs)))


def function_tool(function: Callable[..., Any], *, name: str | None = None) -> Tool:
    """A tool from a function: its signature and docstring become the schema, its return value the text.

    Parameters must be annotated with str, int, float, bool, list or dict (or one of them `| None`). A plain function
    runs in a thread. Raise `ToolError` in it for the model's mistakes.
    """
    hints = typing.get_type_hints(function)
    properties, required = {}, []
    for parameter in inspect.signature(function).parameters.values():
        properties[parameter.name] = {"type": _json_type(hints.get(parameter.name), parameter.name)}
        if parameter.default is inspect.Parameter.empty:
            required.append(parameter.name)
    schema = ToolSchema(
        name=name or function.__name__,
        description=inspect.getdoc(function) or "",
        parameters={"type": "object", "properties": properties, "required": required},
    )
    return _FunctionTool(function, schema)


def _json_type(hint: Any, name: str) -> str:
    origin = typing.get_origin(hint) or hint
    if origin in (Union, types.UnionType):
        members = [a for a in typing.get_args(hint) if a is not type(None)]
        origin = typing.get_origin(members[0]) or members[0]
    if origin not in _JSON_TYPES:
        raise TypeError(f"parameter {name!r} must be annotated with one of str, int, float, bool, list, dict")
    return _JSON_TYPES[origin]


def _check_types(schema: ToolSchema, arguments: dict[str, Any]) -> None:
    allowed = {json_type: python for python, json_type in _JSON_TYPES.items()}
    for name, value in arguments.items():
        expected = schema.parameters["properties"][name]["type"]
        fits = isinstance(value, allowed[expected]) or (expected == "number" and isinstance(value, int))
        if value is not None and (not fits or (isinstance(value, bool) and expected != "boolean")):
            raise ToolError(f"{schema.name}: {name} must be of type {expected}, got {value!r}")


def from_jsonl(
    path: str | Path, *, question: str = "question", answer: str = "answer", limit: int | None = None
) -> Iterator[Task]:
    """Tasks from a JSON-lines file. Ids are `<file stem>/<row>`, rows counted from 0; a list of answers stays a list.

    Raises `ConfigError` that names file and row.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"no file {str(path)!r}")
    with path.open(encoding="utf-8") as lines:
        for row, line in enumerate(lines):
            if limit is not None and row >= limit:
                return
            yield _task(path, row, line, question, answer)


def _task(path: Path, row: int, line: str, question: str, answer: str) -> Task:
    try:
        record = json.loads(line)
        gold = record[answer]
        text = record[question]
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, row {row}: not JSON: {error}") from error
    except KeyError as error:
        raise ConfigError(f"{path}, row {row}: no key {error}; found {', '.join(record)}") from error
    answers = tuple(str(a) for a in gold) if isinstance(gold, list) else (str(gold),)
    return Task(id=f"{path.stem}/{row}", prompt=user_prompt(str(text)), answer=answers, data_source=path.stem)
