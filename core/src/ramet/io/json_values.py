"""Texts and values from outside stay inert: text that steers no terminal, JSON that is not nested without end.

Names in data and weight files, what tools raise, and what a policy writes all end in messages and records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from itertools import chain
from typing import Any

MAX_NESTING = 64  # levels of lists and objects; deeper ones break recursive readers, pickle among them
SCALARS = frozenset({str, int, float, bool, type(None)})
TEXT = frozenset({str})
_strict = json.JSONEncoder(ensure_ascii=False, allow_nan=False)  # made once: `json.dumps` makes one for each call


def visible_lines(text: str) -> Iterator[str]:
    """The lines of a text for a terminal: invisible characters, and those that steer it, are escaped."""
    for line in text.split("\n"):
        yield line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def visible(text: str) -> str:
    """Return `visible_lines` in one text."""
    return "\n".join(visible_lines(text))


def cut(value: Any, limit: int = 80) -> str:
    """A value for a message, at most `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def too_deep(value: Any, most: int = MAX_NESTING) -> bool:
    """Whether lists and objects are nested more than `most` levels deep; `[]` is one level. Looks no deeper."""
    if type(value) is dict and SCALARS.issuperset(map(type, value.values())):  # the arguments of nearly all tool calls
        return most < 1
    level = [value]
    for _ in range(most):
        level = [item for container in level for item in _items(container) if type(item) not in SCALARS]
        if not level:
            return False
    return any(isinstance(container, Mapping | list | tuple) for container in level)


def read_json(text: str) -> Any:
    """The value of a JSON text; None if it is not JSON, or nested more than `MAX_NESTING` levels deep."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # an integer of thousands of digits is a `ValueError` too
        return None
    return None if too_deep(value) else value


def json_fault(value: Any) -> str | None:
    """Name the part of a value that Python read from JSON and others would refuse; None without such a part.

    A policy may write it at will: whatever fails on it later would be its way not to be judged.
    """
    try:
        if type(value) is dict and TEXT.issuperset(map(type, chain(value, value.values()))):
            "".join(chain(value, value.values())).encode()  # texts have no other fault
        else:
            _strict.encode(value).encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair, which is no character"
    except ValueError:
        return "NaN or an infinite number, which JSON does not have"
    except TypeError:  # not from JSON
        pass
    return None


def without_nan(value: Any) -> Any:
    """Replace NaN and infinite numbers, which JSON does not have, by None, also in lists and objects."""
    if isinstance(value, Mapping):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_object(value: Any) -> dict[str, Any]:
    """Return a dataclass as a dict of its fields, for `json.dumps(…, default=as_object)`.

    Without the copies that `asdict` makes of everything in it. Raises `TypeError` otherwise.
    """
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple):
        return value
    return value.values() if isinstance(value, Mapping) else ()
