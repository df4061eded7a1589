"""Every key with its type, default and text: the one source of `ramet JOB --help` and of the reference pages.

All of it comes from the dataclasses: annotations, defaults and the help of each field's `option(default, "help")`.
Plugins that do not use `option` write `metadata={"help": "…"}`, or a comment at the end of the field's line.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from omegaconf import MISSING

from ramet.config.catalog import Catalog, Choice, make_catalog
from ramet.config.gone import shown
from ramet.config.keys import ANY, JOBS, REPLACED
from ramet.config.schema import Config
from ramet.config.sections import COMPONENTS
from ramet.config.settings import type_in_words
from ramet.plugins import load_plugins
from ramet.types.option import Allowed

COMMENT = re.compile(r"^\s+(\w+): .*?  # (.+)$", re.MULTILINE)
REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHelp:
    """One key, by its dotted name as it is typed; `NAME` is any entry of a section of many: `tools.NAME.retries`."""

    key: str
    type: str  # in words: `int or null`, `one of auto, never`
    default: str  # as it is typed; `required` without one
    text: str  # what it does, with its unit; empty if the package gives none
    allowed: str = ""  # the range of its values: `at least 1`
    jobs: tuple[str, ...] = ()  # the jobs that read it
    component: str = ""  # whose option it is: `engine.vllm`; empty for the core's keys
    source: str = ""  # the field that declares it: of options within options, and of classes that extend one


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentHelp:
    """One component that a section can choose, with its own options."""

    name: str
    provider: str  # plugin and distribution
    text: str  # one line; empty if the package gives none
    keys: tuple[KeyHelp, ...]
    unusable: str = ""  # why it cannot be chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionHelp:
    """One section of the configuration: the core's keys, and the components that it chooses from."""

    name: str
    text: str
    jobs: tuple[str, ...]  # the jobs that build it
    many: bool  # chosen with NAME=[A,B] instead of NAME=A
    keys: tuple[KeyHelp, ...]
    components: tuple[ComponentHelp, ...]

    @property
    def is_key(self) -> bool:
        """Whether the section is itself a key: `trackers=[console]`."""
        return len(self.keys) == 1 and self.keys[0].key == self.name


def sections(catalog: Catalog | None = None) -> tuple[SectionHelp, ...]:
    """Return all sections in the order of the schema, with the components of all installed packages."""
    catalog = catalog or make_catalog(load_plugins())
    return tuple(_section(field, catalog) for field in dataclasses.fields(Config))


def _section(field: dataclasses.Field[Any], catalog: Catalog) -> SectionHelp:
    name = field.name
    group = next((group for group in COMPONENTS if group.name == name), None)
    many = group is not None and group.many
    hint = typing.get_type_hints(Config)[name]
    cls = typing.get_args(hint)[1] if many else hint
    if not dataclasses.is_dataclass(cls):  # a section that is itself a key
        keys: Iterator[KeyHelp] = iter([_key(name, cls, field, field.metadata["help"])])
    else:
        skip = ("name", "params") if group is not None else ()
        keys = keys_of(typing.cast("type[Any]", cls), f"{name}.NAME" if many else name, skip=skip)
    return SectionHelp(
        name=name,
        text=field.metadata["help"] or "",
        jobs=tuple(job for job, built in JOBS.items() if name in built and job not in ANY),
        many=many,
        keys=tuple(keys),
        components=tuple(_component(choice, many) for choice in catalog.components.get(name, {}).values()),
    )


def _component(choice: Choice, many: bool) -> ComponentHelp:
    prefix = f"{choice.group}.{choice.name}.params" if many else f"{choice.group}.params"
    name = f"{choice.group}.{choice.name}"
    keys = keys_of(choice.options, prefix) if choice.options is not None and not choice.unusable else ()
    return ComponentHelp(
        name=choice.name,
        provider=choice.plugin,
        text=_summary(choice.options),
        keys=tuple(dataclasses.replace(key, component=name) for key in keys),
        unusable=choice.unusable or "",
    )


def _summary(options: type[Any] | None) -> str:
    """Return the first line of a docstring, which for a dataclass without one is its signature."""
    doc = (options.__doc__ or "").strip() if options else ""
    return "" if options is None or doc.startswith(f"{options.__name__}(") else doc.partition("\n")[0]


def keys_of(cls: type[Any], prefix: str, *, skip: tuple[str, ...] = ()) -> Iterator[KeyHelp]:
    """Yield every option of a dataclass, nested ones too, in the order of its fields."""
    hints, comments = typing.get_type_hints(cls), _comments(cls)
    for field in dataclasses.fields(cls):
        hint, key = hints[field.name], f"{prefix}.{field.name}"
        if field.name in skip:
            continue
        if dataclasses.is_dataclass(hint):
            yield from _nested(field, typing.cast("type[Any]", hint), key)
            continue
        text = field.metadata.get("help") or comments.get(field.name)
        yield _key(key, hint, field, text, source=f"{_owner(cls, field.name)}.{field.name}")


def _nested(field: dataclasses.Field[Any], cls: type[Any], prefix: str) -> Iterator[KeyHelp]:
    """Yield the options within an option, with the defaults that it gives them."""
    values = field.default_factory() if callable(field.default_factory) else None
    for key in keys_of(cls, prefix):
        name = key.key.removeprefix(f"{prefix}.")
        given = values is not None and "." not in name
        yield dataclasses.replace(key, default=_written(getattr(values, name))) if given else key


def _owner(cls: type[Any], name: str) -> str:
    """Return the class that declares a field: `cls`, or one that it extends."""
    owner = next((base for base in cls.__mro__ if name in inspect.get_annotations(base)), cls)
    return f"{owner.__module__}.{owner.__qualname__}"


def _key(key: str, hint: Any, field: dataclasses.Field[Any], text: str | None, source: str = "") -> KeyHelp:
    allowed, section = field.metadata.get("allowed"), key.partition(".")[0]
    type_text = type_in_words(hint)
    if isinstance(allowed, Allowed) and allowed.choices:
        type_text = f"one of {allowed}{' or null' * type_text.endswith(' or null')}"
        allowed = None
    return KeyHelp(
        key=key,
        type=type_text,
        default=_default(field),
        text=text or "",
        allowed=str(allowed) if isinstance(allowed, Allowed) else "",
        jobs=tuple(
            job for job, built in JOBS.items() if section in built and job not in ANY and key not in REPLACED[job]
        ),
        source=source,
    )


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    elif field.default is not dataclasses.MISSING and field.default != MISSING:
        value = field.default
    else:
        return REQUIRED
    return _written(value)


def _written(value: Any) -> str:
    """Return a value as it is typed."""
    return shown(value.value if isinstance(value, Enum) else value) or "''"


def _comments(cls: type[Any]) -> dict[str, str]:
    """Return name -> the comment of its field's line, also in the classes that it extends."""
    comments = dict[str, str]()
    for owner in reversed([owner for owner in cls.__mro__ if dataclasses.is_dataclass(owner)]):
        try:
            comments |= dict(COMMENT.findall(inspect.getsource(owner)))
        except (OSError, TypeError):  # a class without source, such as one made in a shell
            continue
    return comments
