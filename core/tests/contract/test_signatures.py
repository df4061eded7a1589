"""The contract as a text file, so that a change of it is seen in review: `signatures.txt` beside this test.

Made again with `python core/tests/contract/test_signatures.py`.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ramet
from ramet import api
from ramet.plugins import hookspecs

FILE = Path(__file__).with_name("signatures.txt")


def signature(name: str, function: Any) -> str:
    prefix = "async " if inspect.iscoroutinefunction(function) else ""
    return f"{prefix}{name}{inspect.signature(function)}".replace("'", "")


def default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f" = {field.default!r}"
    return "" if field.default_factory is dataclasses.MISSING else f" = {field.default_factory.__name__}()"


def protocol(name: str, found: type) -> Iterator[str]:
    yield f"{name}: protocol({', '.join(base.__name__ for base in found.__bases__ if base.__name__ != 'object')})"
    for attribute, annotation in inspect.get_annotations(found).items():
        value = f" = {getattr(found, attribute)!r}" if hasattr(found, attribute) else ""
        yield f"    {attribute}: {annotation}{value}"
    for member, value in vars(found).items():
        if isinstance(value, property):
            yield f"    property {signature(member, value.fget)}"
        elif inspect.isfunction(value) and (member == "__call__" or not member.startswith("_")):
            yield f"    {signature(member, value)}"


def described(name: str, found: Any) -> Iterator[str]:
    if dataclasses.is_dataclass(found):
        yield f"{name}: dataclass"
        yield from (f"    {field.name}: {field.type}{default(field)}" for field in dataclasses.fields(found))
        yield from (f"    property {key}" for key, value in vars(found).items() if isinstance(value, property))
    elif isinstance(found, type) and issubclass(found, enum.Enum):
        yield f"{name}: enum"
        yield from (f"    {member.name} = {member.value!r}" for member in found)
    elif isinstance(found, types.UnionType):
        yield f"{name}: {' | '.join(one.__name__ for one in found.__args__)}"
    elif isinstance(found, type) and getattr(found, "_is_protocol", False):
        yield from protocol(name, found)
    elif isinstance(found, type):
        yield f"{name}: class({', '.join(base.__name__ for base in found.__bases__)})"
    elif inspect.isfunction(found):
        yield signature(name, found)
    else:
        yield f"{name}: {type(found).__name__}"


def contract() -> str:
    lines = [line for name in sorted(ramet.__all__) for line in described(name, getattr(ramet, name))]
    hooks = {name: found for name, found in vars(hookspecs).items() if hasattr(found, "ramet_spec")}
    lines += [signature(name, hook) for name, hook in sorted(hooks.items())]
    lines += [signature(f"api.{name}", getattr(api, name)) for name in sorted(api.__all__)]
    return "\n".join(lines) + "\n"


def test_the_contract_is_what_the_file_says() -> None:
    assert contract() == FILE.read_text(), "the contract changed: if that is meant, run this file and review the diff"


if __name__ == "__main__":
    FILE.write_text(contract())
