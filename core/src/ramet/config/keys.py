"""Declarations of keys by their dotted names: which jobs read one, and what a change of it does to a resumed run.

A key that the user set in a section that the job does not build would be silently inert, so it is an error. Presets
and experiments may set any section: one experiment serves `ramet sft`, `ramet train` and `ramet eval`.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ramet.config.gone import GONE
from ramet.config.schema import Config
from ramet.config.sections import COMPONENTS
from ramet.plugins import load_plugins
from ramet.plugins.registry import Registry
from ramet.types.option import Resume

KINDS = {group.name: group.kind for group in COMPONENTS}
MAPS = frozenset(group.name for group in COMPONENTS if group.many)
NAMES_OF_JOBS = ("train", "sft", "eval", "data", "play", "judge")
# Commands that look at any run's configuration: they take its keys as they are, whatever they use of them.
ANY = ("tool", "doctor")


def fields_below(owner: type[Any], prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Yield every field by its dotted name, sections before their keys; `NAME` is any entry of a map."""
    hints = typing.get_type_hints(owner)
    for field in dataclasses.fields(owner):
        key, inner = f"{prefix}{field.name}", _inner(hints[field.name])
        yield key, field
        if inner is not None:
            yield from fields_below(inner, f"{key}.NAME." if typing.get_args(hints[field.name]) else f"{key}.")


def _inner(hint: Any) -> type[Any] | None:
    """The dataclass of a section, or of the entries of a map."""
    inner = typing.get_args(hint)[1] if typing.get_origin(hint) is dict else hint
    return inner if isinstance(inner, type) and dataclasses.is_dataclass(inner) else None


def _jobs() -> dict[str, tuple[str, ...]]:
    sections = {field.name: field.metadata["jobs"] for field in dataclasses.fields(Config)}
    built = {job: tuple(name for name, jobs in sections.items() if job in jobs) for job in NAMES_OF_JOBS}
    return built | dict.fromkeys(ANY, tuple(sections))


FIELDS = dict(fields_below(Config))
JOBS = _jobs()  # which sections each builds
# Keys inside a built section that the job does not read, and what it reads instead.
REPLACED: dict[str, dict[str, str | None]] = {
    job: {key: instead[job] for key, field in FIELDS.items() if job in (instead := field.metadata.get("instead", {}))}
    for job in JOBS
}
ENTRIES = tuple(f"{key}.{entry}" for key, field in FIELDS.items() for entry in field.metadata.get("entries") or ())


def _other_names() -> Iterator[tuple[str, Sequence[str]]]:
    for key, field in FIELDS.items():
        names = field.metadata.get("aka") or []
        yield from (
            ((f"{key}.{entry}", of) for entry, of in names.items()) if isinstance(names, dict) else [(key, names)]
        )


OTHER_NAMES = {key: names for key, names in _other_names() if names}


def unused_key(key: str, job: str) -> str | None:
    """Return what is wrong with setting `key` for this job, None if the job reads it. Presets are always allowed."""
    section = key.partition(".")[0]
    users = ", ".join(name for name, sections in JOBS.items() if section in sections and name not in ANY)
    if not users:
        return None  # a preset group, or no section at all, which is another mistake
    if section not in JOBS[job]:
        return f"{key}: `ramet {job}` has no section {section!r} (used by: {users}); leave the key out"
    owner = next((replaced for replaced in REPLACED[job] if f"{key}.".startswith(f"{replaced}.")), None)
    if owner is None:
        return None
    instead = REPLACED[job][owner]
    return f"{key}: `ramet {job}` does not read it; {'leave the key out' if instead is None else f'set {instead}'}"


def resume_of(key: str) -> Resume:
    """Return what another value of this key does to a resumed run, as it or its section declares.

    An option of a component counts as its plugin declares it. Where the key does not say which component is meant, all
    of the group that have the option must declare the same. What is not declared alters the numbers.
    """
    if key in GONE:
        return GONE[key].resume
    section, *rest = key.split(".")
    if section in KINDS and "params" in rest[:2]:
        declared = set(_declared_by_components(section, rest))
        if len(declared) == 1 and (resume := declared.pop()) is not None:
            return resume
    if section in MAPS:
        rest[:1] = ["NAME"]
    parts = [section, *rest]
    for n in range(len(parts), 0, -1):
        field = FIELDS.get(".".join(parts[:n]))
        if field and (said := field.metadata.get("resume")):
            by_entry = isinstance(said, Mapping)
            return Resume(said.get(".".join(parts[n:]), Resume.NUMBERS) if by_entry else said)
    return Resume.NUMBERS


def _declared_by_components(group: str, path: Sequence[str]) -> Iterator[Resume | None]:
    name = path[0] if group in MAPS else None
    option, *within = path[path.index("params") + 1 :] or [""]  # without options `params` itself is a leaf: null
    plugins, kind = load_plugins(), KINDS[group]
    registry: Registry[Any] = plugins.engines if kind is None else getattr(plugins.registries, kind)
    for entry in registry:
        if entry.config is None or (entry.name != name and (name or "") in registry):
            continue
        for field in dataclasses.fields(entry.config):
            if field.name == option:
                said = field.metadata.get("resume")
                yield said.get(".".join(within)) if isinstance(said, Mapping) else said
