"""Readers of request bodies: each field has one type, and what is not followed is refused or recorded, never dropped.

Raises of all functions: `BadRequest`, which names the field.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ramet.rollout.gateway.messages import BadRequest, Said
from ramet.types import ToolSchema

SAMPLING = frozenset({"temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty"})

TOOL_NAME = re.compile(r"[\w.:/-]{1,128}", re.ASCII)


def check_fields(body: Mapping[str, Any], *, known: frozenset[str], refused: Mapping[str, str]) -> None:
    """Refuse fields that would change what is sampled (`refused`: field -> reason), and unknown ones."""
    for name, value in body.items():
        if value is None:
            continue
        if name in refused and value not in (False, [], {}):
            raise BadRequest(f"{name} is not supported: {refused[name]}", field=name)
        if name not in known and name not in refused and name not in SAMPLING:
            raise BadRequest(f"unknown parameter: {name}", field=name, code="unknown_parameter")


def asked_sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling that a client asks for; a finite number each."""
    asked = {name: body[name] for name in sorted(SAMPLING) if body.get(name) is not None}
    for name, value in asked.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) == math.inf:
            raise BadRequest(f"{name} must be a number, got {value!r:.80}", field=name)
    return asked


def text_of(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise BadRequest(f"{field} must be a text, got {value!r:.80}", field=field)
    return value


def list_of(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadRequest(f"{field} must be a list, got {value!r:.80}", field=field)
    return value


def object_of(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(f"{field} must be an object, got {value!r:.80}", field=field)
    return value


def count_of(body: Mapping[str, Any], *names: str) -> int | None:
    """The first of these fields that is given; at least 1."""
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadRequest(f"{name} must be an integer of at least 1, got {value!r:.80}", field=name)
        return value
    return None


def number_of(body: Mapping[str, Any], name: str) -> float | None:
    """A finite number, if the field is given."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise BadRequest(f"{name} must be a finite number, got {value!r:.80}", field=name)
    return float(value)


def index_of(body: Mapping[str, Any], name: str) -> int | None:
    """An integer of at least 0, if the field is given."""
    value = body.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise BadRequest(f"{name} must be an integer of at least 0, got {value!r:.80}", field=name)
    return value


def flag_of(body: Mapping[str, Any], name: str, *, default: bool = False, where: str = "") -> bool:
    """`where` is the path of `body` in the request."""
    value, field = body.get(name), f"{where}.{name}" if where else name
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{field} must be true or false, got {value!r:.80}", field=field)
    return default if value is None else value


def texts_of(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The texts of a field that takes one or a list; none is empty."""
    value = body.get(name)
    texts = [value] if isinstance(value, str) else list_of([] if value is None else value, name)
    for i, text in enumerate(texts):
        if not text_of(text, f"{name}[{i}]"):
            raise BadRequest(f"{name}[{i}] must not be empty", field=name)
    return tuple(texts)


def parts_text(content: Any, field: str, *, kinds: Sequence[str], between: str = "") -> str:
    """The text of a content: a text, or a list of parts of these `kinds`, each with a `text`."""
    if isinstance(content, str):
        return content
    texts = []
    for number, part in enumerate(list_of(content, field)):
        where = f"{field}[{number}]"
        kind = object_of(part, where).get("type")
        if kind not in kinds:
            raise BadRequest(f"{where}: parts of type {kind!r} are not supported, only {', '.join(kinds)}", field=where)
        texts.append(text_of(part.get("text", part.get("refusal")), f"{where}.text"))
    return between.join(texts)


def offers_tools(body: Mapping[str, Any]) -> bool:
    """Whether `tool_choice` (of OpenAI's dialects) lets the model call tools."""
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise BadRequest(
            f"tool_choice must be auto or none, got {choice!r:.80}: nothing is forced", field="tool_choice"
        )
    return choice != "none"


def schema_of(function: Any, field: str, *, parameters: str) -> ToolSchema:
    """A function's description as a tool's schema; `parameters` is the dialect's field of its JSON schema."""
    function, place = object_of(function, field), f"{field}.{parameters}"
    name = text_of(function.get("name"), f"{field}.name")
    if not TOOL_NAME.fullmatch(name):
        allowed = "1 to 128 letters, digits and _ . : / -"
        raise BadRequest(f"{field}.name must have {allowed}, got {name!r:.80}", field=f"{field}.name")
    schema = function.get(parameters)
    schema = {"type": "object"} if schema is None or schema == {} else object_of(schema, place)
    _check_schema(schema, place)
    description = text_of(function.get("description") or "", f"{field}.description")
    return ToolSchema(name=name, description=description, parameters=schema)


def _check_schema(schema: Mapping[str, Any], field: str) -> None:
    """Refuse a JSON schema that describes no arguments; chat templates read no further than its properties."""
    if (kind := schema.get("type", "object")) != "object":
        raise BadRequest(f"{field}.type must be object, got {kind!r:.80}", field=f"{field}.type")
    properties = object_of(schema.get("properties", {}), f"{field}.properties")
    for name, described in properties.items():
        if not isinstance(described, bool):  # true allows every value, false none
            object_of(described, f"{field}.properties.{name:.80}")
    for i, name in enumerate(list_of(schema.get("required", []), f"{field}.required")):
        text_of(name, f"{field}.required[{i}]")


def check_results(messages: Sequence[Said], field: str) -> None:
    """Refuse results of tools that answer no call of an earlier message."""
    ids = set[str]()
    for said in messages:
        if said.role == "tool" and said.call_id not in ids:
            raise BadRequest(f"{field}: no earlier message has the call {said.call_id!r:.80} of a result", field=field)
        ids.update(call.id for call in said.calls)
