"""Overrides of the user (`key=value …`), read, sorted and refused where it cannot be; and the points of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import PurePath

from ramet.config.aliases import meant
from ramet.config.catalog import LOCAL, Catalog
from ramet.config.hydra_adapter import Override, group_options, names_of, parse, values_of
from ramet.config.keys import JOBS, REPLACED, unused_key
from ramet.config.sections import COMPONENTS, GROUPS, PRESETS
from ramet.config.settings import Setting
from ramet.errors import ConfigError, raise_all

SWEEP_KEYS = ("hydra/launcher", "hydra/sweeper", "hydra.launcher", "hydra.sweeper", "hydra.sweep")
SWEEP_VALUES = "allowed: a=1,2 choice(…) range(…) glob(…)"


@dataclass(slots=True)
class JobRequest:
    """The user's overrides, sorted. A repeated key counts once, the last one wins."""

    job: str
    choices: dict[str, Override] = field(default_factory=dict)  # group -> override
    typed: dict[str, str] = field(default_factory=dict)  # group -> override as it was typed
    settings: dict[str, Setting] = field(default_factory=dict)  # key -> value
    problems: list[str] = field(default_factory=list)


def read(overrides: Sequence[str], job: str) -> JobRequest:
    """The request, with what is wrong about single overrides among its problems."""
    request = JobRequest(job=job)
    for text in overrides:
        if any("\ud800" <= char <= "\udfff" for char in text):  # bytes that Python could not read
            shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            request.problems.append(f"cannot read {shown!r}: not UTF-8 here; set a UTF-8 locale, as in LC_ALL=C.UTF-8")
            continue
        try:
            override = parse(text)
        except ConfigError as error:
            request.problems.append(f"cannot read {text!r}: {_how_to_write(text, error)}")
            continue
        problem = _refused(override, text) or _unused(override.key_or_group, job)
        if problem:
            request.problems.append(problem)
        elif override.key_or_group in GROUPS:
            request.choices[override.key_or_group] = override
            request.typed[override.key_or_group] = text.lstrip("+")
        else:
            key = override.key_or_group
            request.settings[key] = Setting(key=key, value=override.value(), text=text.partition("=")[2])
    return request


def _unused(key: str, job: str) -> str | None:
    """Return what is wrong with setting `key` for this job, and the job's own key for the same, if there is one."""
    problem = unused_key(key, job)
    if problem is None or key in REPLACED.get(job, {}):
        return problem
    sections = JOBS[job]
    instead = (
        meant(key, lambda candidate: candidate.partition(".")[0] in sections and ".params." not in candidate) or ()
    )
    return problem + (f", or set {' or '.join(instead)}" if instead else "")


def _how_to_write(text: str, error: ConfigError) -> str:
    """Say what is wrong with an override that cannot be read, and how to write it.

    Hydra takes only ASCII letters and some signs outside quotes.
    """
    key, equals, value = text.partition("=")
    if not equals:
        return _bare_word(text)
    quoted = "['VALUE']" if value.startswith("[") else "'VALUE'"
    return f'{error}; put the value in quotes, and all of it for the shell: "{key}={quoted}"'


def _bare_word(text: str) -> str:
    """Say what to write instead of a word without `=`, which may be a file of settings or the name of a preset."""
    path = PurePath(text)
    if path.suffix in (".yaml", ".yml"):
        return (
            f"a file of settings is an experiment: put it at {LOCAL}/experiment/{path.stem}.yaml, with the first line "
            f"`# @package _global_`, and write experiment={path.stem}; a file of another trainer: ramet migrate"
        )
    groups = [group for group, names in group_options(PRESETS).items() if text in names]
    return f"write {groups[0]}={text}" if groups else "write key=value"


def _refused(override: Override, text: str) -> str | None:
    key = override.key_or_group
    if key.partition(".")[0].partition("/")[0] == "hydra":
        return f"{key}: Hydra's own keys cannot be set here (directories with presets: --config-dir)"
    if override.is_delete():
        return f"{text}: deleting is not possible; choose another value, as in tools=[]"
    if override.package is not None:
        return f"{text}: '@package' is not possible here"
    if override.is_sweep_override():
        return f"{text}: several values for one key; a list is written {key}=[a,b], a sweep takes -m"
    return None


def wrong_choices(request: JobRequest, catalog: Catalog) -> dict[str, list[str]]:
    """Group -> what is wrong with its choice. Hydra must be running."""
    wrong: dict[str, list[str]] = {}
    many = {group.name for group in COMPONENTS if group.many}
    for group, override in request.choices.items():
        value, options = override.value(), names_of(group)
        names = value if isinstance(value, list) else [value]
        bad = [str(name) for name in names if str(name) not in options]
        if isinstance(value, list) and group not in many:
            wrong[group] = [f"{group}: takes one name, got {value}"]
        elif value is None or isinstance(value, dict):
            wrong[group] = [f"{group}: {override.get_value_string()} is not a choice; allowed: {', '.join(options)}"]
        elif bad:
            wrong[group] = [catalog.unknown_choice(group, name, options) for name in bad]
    return wrong


@dataclass(frozen=True, slots=True)
class SweptOverrides:
    """The overrides of a sweep. Hydra composes every point before Ramet does, and knows no instances
    (`GROUP.NAME.use`): it is given only the values that are swept, under names of its own.
    """

    typed: tuple[str, ...]

    def for_hydra(self) -> list[str]:
        """Return Hydra's own keys, and what is swept. Raises `ConfigError` for what cannot be read."""
        of_hydra = [text for text in self.typed if text.lstrip("+").startswith("hydra")]
        swept = [(name, self._last[key]) for name, key in self._names.items()]
        globs = [text for text in self._last.values() if _is_glob(parse(text))]
        return [*of_hydra, *(f"+{name}={text.partition('=')[2]}" for name, text in swept), *globs]

    def point(self, of_point: Sequence[str]) -> list[str]:
        """The overrides of a point, in the order in which they were typed; `of_point` are those that Hydra gives it."""
        values = dict(text.lstrip("+").split("=", 1) for text in of_point)
        swept = {key: values.pop(name) for name, key in self._names.items() if name in values}
        overrides = []
        for text in self.typed:
            key = text.partition("=")[0].lstrip("+")
            if not key.startswith("hydra"):
                value = swept.get(key, values.pop(key, None))
                overrides.append(text if value is None else f"{key}={value}")
        return [*overrides, *(f"{key}={value}" for key, value in values.items())]

    @property
    def _last(self) -> dict[str, str]:
        """Key -> the override of it that counts, without Hydra's."""
        keys = ((text.partition("=")[0].lstrip("+"), text) for text in self.typed)
        return {key: text for key, text in keys if not key.startswith("hydra")}

    @property
    def _names(self) -> dict[str, str]:
        """Name for Hydra -> key, of what is swept. A glob is over the options of a group, so it keeps that name."""
        read = ((key, parse(text)) for key, text in self._last.items())
        swept = [key for key, override in read if override.is_sweep_override() and not _is_glob(override)]
        return {f"swept.value_{i}": key for i, key in enumerate(swept)}


def _is_glob(override: Override) -> bool:
    return override.is_sweep_override() and override.get_value_string().startswith("glob(")


def sweep_points(overrides: Sequence[str]) -> list[list[str]] | None:
    """The overrides of every point of a sweep, in order; None if another sweeper than Hydra's own chooses them.

    Raises `ConfigErrors` for what cannot be read or set.
    """
    swept, problems = list[Override](), list[str]()
    other = False
    for text in overrides:
        try:
            override = parse(text)
        except ConfigError as error:
            problems.append(f"cannot read {text!r}: {error}; write key=value")
            continue
        key = override.key_or_group
        if not (key == "hydra" or key.startswith(("hydra.", "hydra/"))):
            swept.append(override)
        elif not key.startswith(SWEEP_KEYS):
            problems.append(f"{key}: of Hydra's own keys a sweep takes {', '.join(SWEEP_KEYS)}")
        else:
            other = other or key == "hydra/sweeper"
    raise_all(problems)
    if other:
        return None
    values = {override.get_key_element(): _values(override) for override in swept}  # the last of a key counts
    return [list(point) for point in product(*values.values())]


def _values(override: Override) -> list[str]:
    """Raises `ConfigError` for values that cannot be listed."""
    try:
        values = values_of(override)
    except ConfigError as error:
        raise ConfigError(f"sweep: {error}; {SWEEP_VALUES}") from error
    return [f"{override.get_key_element()}={value}" for value in values]
