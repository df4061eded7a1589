"""Tools that a row describes: a list of schemas, or its JSON text, as sets of tool calls have them.

A schema is OpenAI's (`{"type": "function", "function": {…}}`) or only its inner object (`name`, `description`,
`parameters`). Parameters are passed on as they are: sets write them as JSON schemas and in their own dialects. Nulls
are left out where they are not JSON text: parquet fills the keys that other rows have with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ramet.io.json_values import cut, json_fault, read_json
from ramet.types import ToolSchema

EXPECTED = "expected a schema with a name, a description (text) and parameters (an object)"


def read_tools(value: Any) -> tuple[tuple[ToolSchema, ...] | None, list[str]]:
    """The tools of a row's column, or its problems. None: the column is absent or empty; an empty list: no tool.

    Files have an empty text for rows without tools.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None, []
    read = read_json(value) if isinstance(value, str) else without_nulls(value)
    items = [read] if isinstance(read, dict) else read
    if not isinstance(items, list):
        return None, [f"'tools' must be a list of schemas or its JSON text, got {cut(value)}"]
    schemas: dict[str, ToolSchema] = {}
    problems: list[str] = []
    for index, item in enumerate(items):
        schema = _schema(read_json(item) if isinstance(item, str) else item)
        if schema is None:
            problems.append(f"tools[{index}]: {EXPECTED}, got {cut(item)}")
        elif (fault := json_fault(schema.function)) is not None:
            problems.append(f"tools[{index}]: {schema.name!r} contains {fault}")
        elif schema.name in schemas:
            problems.append(f"tools[{index}]: {schema.name!r} is described twice")
        else:
            schemas[schema.name] = schema
    return (None, problems) if problems else (tuple(schemas.values()), [])


def _schema(item: Any) -> ToolSchema | None:
    function = item.get("function", item) if isinstance(item, Mapping) else None
    if not isinstance(function, Mapping):
        return None
    name, description = function.get("name"), function.get("description") or ""
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not (isinstance(name, str) and name and isinstance(description, str) and isinstance(parameters, Mapping)):
        return None
    as_json = json.loads(json.dumps(parameters, default=str))  # what parquet knows beyond JSON, as dates, becomes text
    return ToolSchema(name=name, description=description, parameters=as_json)


def without_nulls(value: Any) -> Any:
    """The value without keys that have no value. In lists nulls stay."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
