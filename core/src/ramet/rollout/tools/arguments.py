"""Arguments against a tool's schema, before the tool runs. What does not fit is the model's mistake and is told to it.

The part of JSON schema that tools use: required and known names, types, enumerations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ramet.errors import ToolError
from ramet.io.json_values import MAX_NESTING, too_deep
from ramet.types import ToolSchema

_IS: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "array": lambda v: isinstance(v, list | tuple),
    "object": lambda v: isinstance(v, Mapping),
    "null": lambda v: v is None,
}


def check_arguments(schema: ToolSchema, arguments: Mapping[str, Any]) -> None:
    """Raise `ToolError` with everything that is wrong. A null for an optional argument counts as not given."""
    if too_deep(arguments):
        raise ToolError(f"{schema.name}: the arguments are nested more than {MAX_NESTING} levels deep")
    properties = schema.parameters.get("properties", {})
    required = schema.parameters.get("required", [])
    problems = [f"{name} is missing" for name in required if name not in arguments]
    for name, value in arguments.items():
        if name in properties:
            problems += [] if value is None and name not in required else _problems(name, value, properties[name])
        elif not schema.parameters.get("additionalProperties", "properties" not in schema.parameters):
            problems.append(f"there is no {name} (known: {', '.join(properties) or 'none'})")
    if problems:
        raise ToolError(f"{schema.name}: {'; '.join(problems)}")


def _problems(name: str, value: Any, spec: Mapping[str, Any]) -> list[str]:
    found = spec.get("type")
    types = [found] if isinstance(found, str) else list(found or [])
    if types and not any(_IS[one](value) for one in types if one in _IS):
        return [f"{name} must be of type {' or '.join(types)}, got {_short(value)}"]
    if "enum" in spec and value not in spec["enum"]:
        return [f"{name} must be one of {', '.join(map(repr, spec['enum']))}, got {_short(value)}"]
    return []


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
