"""Arguments that a model wrote, checked against their JSON schema.

Checked parts of the schema: required and known names, types and enumerations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ramet.io.json_values import MAX_NESTING, json_fault, too_deep
from ramet.types.tool_schema import ToolSchema, properties_of, required_of

_IS: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "array": lambda v: isinstance(v, list | tuple),
    "object": lambda v: isinstance(v, Mapping),
    "null": lambda v: v is None,
}


def argument_problem(schema: ToolSchema, arguments: Mapping[str, Any]) -> str | None:
    """Everything that is wrong, as a text for the model. A null for an optional argument counts as not given."""
    if too_deep(arguments):
        return f"{schema.name}: the arguments are nested more than {MAX_NESTING} levels deep"
    if (fault := json_fault(dict(arguments))) is not None:
        return f"{schema.name}: the arguments hold {fault}"
    properties, required = properties_of(schema.parameters), required_of(schema.parameters)
    describes_any = isinstance(schema.parameters.get("properties"), Mapping)
    problems = [f"{name} is missing" for name in required if name not in arguments]
    for name, value in arguments.items():
        if name in properties:
            problems += [] if value is None and name not in required else _problems(name, value, properties[name])
        elif not schema.parameters.get("additionalProperties", not describes_any):
            problems.append(f"there is no {name} (known: {', '.join(properties) or 'none'})")
    return f"{schema.name}: {'; '.join(problems)}" if problems else None


def _problems(name: str, value: Any, spec: Mapping[str, Any]) -> list[str]:
    """Problem of a value by the schema of its argument.

    Types and lists that JSON schema does not have allow anything.
    """
    allowed, choices = spec.get("type"), spec.get("enum")
    types = [allowed] if isinstance(allowed, str) else allowed if isinstance(allowed, list | tuple) else []
    known = [kind for kind in types if isinstance(kind, str) and kind in _IS]
    if known and len(known) == len(types) and not any(_IS[kind](value) for kind in known):
        return [f"{name} must be of type {' or '.join(known)}, got {_short(value)}"]
    if isinstance(choices, list | tuple) and value not in choices:
        return [f"{name} must be one of {', '.join(map(repr, choices))}, got {_short(value)}"]
    return []


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
