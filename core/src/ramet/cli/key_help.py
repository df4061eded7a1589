"""`ramet JOB --help SECTION|KEY|WORD|all`: sections, keys and components by name, and a search in keys and texts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ramet.cli.common_keys import COMMON
from ramet.cli.help_data import REQUIRED, ComponentHelp, KeyHelp, SectionHelp
from ramet.cli.help_text import entry, paragraph
from ramet.cli.repeated_keys import RepeatedKeys
from ramet.config.aliases import meant, names_of_others
from ramet.config.gone import shown
from ramet.config.keys import JOBS, unused_key
from ramet.config.sections import COMPONENTS, PRESETS
from ramet.errors import ConfigError

COLUMN = 44  # where the texts of keys begin
EVERYTHING = "all"
LISTED_BY = {"algorithm": "`ramet algorithms` lists the presets", "experiment": "`ramet recipes` lists them"}


class InForce:
    """The values of a composed configuration, by key."""

    def __init__(self, tree: DictConfig) -> None:
        self._values: Any = OmegaConf.to_container(tree, resolve=False)

    def assignment(self, key: KeyHelp) -> str:
        """Return `key=value` as it is typed: the value in force, else the default."""
        value = self.value(key.key) if not key.component or key.component in self._components() else ...
        if value is ...:
            return f"{key.key}={'…' if key.default == REQUIRED else key.default}"
        return f"{key.key}={'…' if value == '???' else written(value)}"

    def value(self, key: str) -> Any:
        """Return the value of a dotted key; `...` if the configuration does not have it."""
        node = self._values
        for part in key.split("."):
            if not isinstance(node, dict) or part not in node:
                return ...
            node = node[part]
        return node

    def _components(self) -> set[str]:
        """Return the chosen components as `engine.torch`. Entries of sections of many are in the values by name."""
        return {
            f"{group.name}.{name}"
            for group in COMPONENTS
            for name in (self.value(group.name) if group.many else [self.value(f"{group.name}.name")])
        }

    def chosen(self, section: SectionHelp) -> set[str]:
        """Return the names of the components that the section chooses, by registered name."""
        node = self.value(section.name)
        if not section.many:
            return {str(node["name"])} if isinstance(node, dict) and "name" in node else set()
        return {str((settings or {}).get("use") or name) for name, settings in (node or {}).items()}

    def choice(self, section: SectionHelp) -> str:
        """Return the section's choice as it is typed: `engine=torch`, `tools=[python]`."""
        node = self.value(section.name)
        return f"{section.name}=" + (f"[{','.join(node)}]" if section.many else str(node["name"]))


def written(value: Any) -> str:
    """Return a value as it is typed."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{written(item)}" for name, item in value.items()) + "}"
    return shown(getattr(value, "value", value)) or "''"


@dataclass(frozen=True, slots=True)
class _Page:
    """The common parts of the answers to all words."""

    job: str
    sections: Sequence[SectionHelp]
    in_force: InForce
    width: int

    def keys(self) -> Iterator[KeyHelp]:
        """Yield all keys of the job and of all components."""
        for section in self.sections:
            yield from section.keys
            for component in section.components:
                yield from component.keys

    def entry(self, key: KeyHelp, indent: int = 2, owner: str = "") -> list[str]:
        """Return the lines of one key: `key=value  text [type, range]`; after them whose option it is, where given."""
        text = f"{key.text} [{', '.join(filter(None, (key.type, key.allowed, owner)))}]".strip()
        return entry(self.in_force.assignment(key), text, width=self.width, column=COLUMN, indent=indent)


def answer(words: Sequence[str], job: str, sections: Sequence[SectionHelp], in_force: InForce, width: int) -> list[str]:
    """Return the lines about each word. Raises `ConfigError` for a word that no section, key or text has."""
    page = _Page(job, sections, in_force, width)
    return [line for word in words for line in _about(word, page)]


def _about(word: str, page: _Page) -> list[str]:
    repeated = RepeatedKeys()
    if word == EVERYTHING:
        return [line for section in page.sections for line in _section(section, page, repeated, unfold=True)]
    if word in PRESETS:
        return [f"{word}=NAME: {LISTED_BY[word]}"]
    for section in page.sections:
        if section.name == word:
            return list(_section(section, page, repeated, unfold=False))
    if keys := [key for key in page.keys() if key.key in (word, _of_any_entry(word, page))]:
        return [line for key in keys for line in _key(replace(key, key=word), page)]
    if components := _components(word, page):
        return [line for section, component in components for line in _component(section, component, page, repeated)]
    return list(_search(word, page))


def _of_any_entry(word: str, page: _Page) -> str:
    """Return `tools.NAME.retries` for `tools.python.retries`."""
    name, _, rest = word.partition(".")
    many = any(section.name == name and section.many for section in page.sections)
    return f"{name}.NAME.{rest.partition('.')[2]}" if many else word


def _with_star(key: KeyHelp, page: _Page) -> str:
    """Return `benchmarks.*.params.judge.server.retries` for the key of one benchmark."""
    name, _, rest = key.key.partition(".")
    many = any(section.name == name and section.many for section in page.sections)
    return f"{name}.*.{rest.partition('.')[2]}" if many else key.key


def _section(section: SectionHelp, page: _Page, repeated: RepeatedKeys, *, unfold: bool) -> Iterator[str]:
    """Yield the core's keys of a section and its components, those that are not chosen on one line each."""
    title = f"{section.name}: {section.text}" if section.text else section.name
    yield from paragraph(title, width=page.width)
    for key in section.keys:
        yield from page.entry(key)
    chosen = page.in_force.chosen(section) if section.components else set[str]()
    for component in section.components:
        if unfold or component.name in chosen or component.unusable:
            yield from _component(section, component, page, repeated)
        else:
            yield from _folded(section, component, page)
    yield ""


def _folded(section: SectionHelp, component: ComponentHelp, page: _Page) -> list[str]:
    how = f": --help {section.name}.{component.name}" if component.keys else ""
    text = f"{component.text} ({_counted(len(component.keys))}{how})".strip()
    return entry(component.name, text, width=page.width, column=COLUMN - 16)


def _component(section: SectionHelp, component: ComponentHelp, page: _Page, repeated: RepeatedKeys) -> Iterator[str]:
    """Yield the options of a component. Those that another one has shown are one line."""
    choice = f"{section.name}=[{component.name}]" if section.many else f"{section.name}={component.name}"
    reason = f"; UNUSABLE: {component.unusable}" if component.unusable else ""
    text = f": {component.text}" if component.text else ""
    yield from paragraph(f"{choice}  — {component.provider}{reason}{text}", width=page.width, indent=2)
    new, shared = repeated.split(component.keys)
    for key in new:
        yield from page.entry(key, indent=4)
    for (here, there), count in shared.items():
        text = f"{_counted(count)}, as {there}.*"
        yield from entry(f"{here}.*", text, width=page.width, column=COLUMN, indent=4)


def _counted(options: int) -> str:
    return f"{options} option{'s' * (options != 1)}" if options else "no options"


def _key(key: KeyHelp, page: _Page) -> Iterator[str]:
    """Yield all facts of one key."""
    yield page.in_force.assignment(key)
    if key.text:
        yield from paragraph(key.text, width=page.width, indent=2)
    names = dict.fromkeys(names_of_others().get(_of_any_entry(key.key, page), ()))
    facts = {
        "option of": key.component,
        "type": key.type,
        "allowed": key.allowed,
        "default": key.default,
        "read by": ", ".join(f"ramet {job}" for job in key.jobs),
        "other trainers": ", ".join(names),
    }
    for name, fact in facts.items():
        if fact:
            yield from entry(name, fact, width=page.width, column=20)
    yield ""


def _components(word: str, page: _Page) -> list[tuple[SectionHelp, ComponentHelp]]:
    """Return the components that `word` names, with their section or without."""
    return [
        (section, component)
        for section in page.sections
        for component in section.components
        if word in (component.name, f"{section.name}.{component.name}")
    ]


def _search(word: str, page: _Page) -> Iterator[str]:
    """Yield the keys whose name, text or other trainers' name has the word, each text once."""
    if problem := _of_another_job(word, page.job):
        raise ConfigError(problem)
    by_others = meant(word, lambda candidate: any(key.key == candidate for key in page.keys())) or []
    sought = word.lower()
    found = [
        key for key in page.keys() if sought in key.key.lower() or sought in key.text.lower() or key.key in by_others
    ]
    if not found:
        raise ConfigError(_unknown(word, page))
    alike: dict[tuple[str, str], list[KeyHelp]] = {}
    for key in found:
        alike.setdefault((key.key.rpartition(".")[2], key.text), []).append(key)
    for first, *others in alike.values():
        in_key = f"{first.component}." in first.key  # as in tools.python.params.slots
        yield from page.entry(first, owner="" if in_key or not first.component else f"of {first.component}")
        if others:
            names = dict.fromkeys(_with_star(key, page) for key in others)
            yield from paragraph(f"the same: {', '.join(names)}", width=page.width, indent=4)


def _of_another_job(word: str, job: str) -> str | None:
    """Return where a key or section that this job does not read is explained."""
    section = word.partition(".")[0]
    others = [other for other in COMMON if section in JOBS[other]]
    if others and job not in others:
        return f"--help {word}: `ramet {job}` has no section {section!r}; see `ramet {others[0]} --help {word}`"
    problem = unused_key(word, job) if others else None
    return f"--help {problem}" if problem else None


def _unknown(word: str, page: _Page) -> str:
    names = dict.fromkeys(_names(page))
    close = difflib.get_close_matches(word, list(names), n=2, cutoff=0.7)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    sections = ", ".join(section.name for section in page.sections)
    return f"--help {word}: no section, key, component or text has it.{hint} Sections: {sections}"


def _names(page: _Page) -> Iterable[str]:
    for section in page.sections:
        yield section.name
        yield from (component.name for component in section.components)
        yield from (f"{section.name}.{component.name}" for component in section.components)
    for key in page.keys():
        yield from (key.key, key.key.rpartition(".")[2])
