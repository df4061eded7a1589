"""Texts between the model and a tool: the model's arguments, checked, and the tool's text, fit for the model.

Checked parts of the JSON schema: required and known names, types and enumerations. A text has no control characters,
and no more tokens than allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ramet.io.json_values import MAX_NESTING, json_fault, too_deep
from ramet.types import ToolSchema
from ramet.types.tool_schema import properties_of, required_of

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder

CUT = "\n[... cut ...]\n"
CHARS_PER_TOKEN = 32  # no more characters than this per allowed token are ever tokenised
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
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


def fit(text: str, max_tokens: int, encoder: Encoder) -> tuple[str, bool]:
    """The text as the model may see it, and whether it was cut.

    Three quarters of the kept text come from the head and one from the tail: errors are at the end.
    """
    window = max_tokens * CHARS_PER_TOKEN
    if len(text) > window:
        return _cut(visible(text[:window]), visible(text[-window:]), max_tokens, encoder), True
    shown = visible(text)
    if len(encoder.untrusted(shown)) <= max_tokens:
        return shown, False
    return _cut(shown, shown, max_tokens, encoder), True


def visible(text: str) -> str:
    """Line ends become newlines; other control characters and lone surrogates are written out, as in `\\x1b`."""
    if text.replace("\n", " ").isprintable():  # nearly always, and much faster than the expression
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape", "backslashreplace").decode("ascii"), text)


def _cut(head: str, tail: str, max_tokens: int, encoder: Encoder) -> str:
    head_ids, tail_ids = encoder.untrusted(head), encoder.untrusted(tail)
    room = max(0, max_tokens - len(encoder.untrusted(CUT)))
    while True:
        n_tail = room // 4
        first = encoder.decode(head_ids[: room - n_tail]).rstrip("\ufffd")
        last = encoder.decode(tail_ids[len(tail_ids) - n_tail :]).lstrip("\ufffd")
        joined = f"{first}{CUT}{last}"
        excess = len(encoder.untrusted(joined)) - max_tokens  # cut text may tokenise to more than it was cut from
        if excess <= 0 or room == 0:
            return joined
        room = max(0, room - excess)
