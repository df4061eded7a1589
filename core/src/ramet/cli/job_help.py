"""`ramet JOB --help`: every section that the job builds, and every installed plugin's options, with types and defaults.

The text is made from the dataclasses: annotations, defaults and the help of each field's `option(default, "help")`.
Plugins of before `option` was public write `metadata={"help": "…"}`, or a comment at the end of the field's line.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from ramet.config.catalog import Catalog, make_catalog
from ramet.config.hydra_adapter import group_options
from ramet.config.keys import JOBS
from ramet.config.schema import Config
from ramet.config.sections import CLUSTER, COMPONENTS, PRESETS
from ramet.config.settings import type_in_words
from ramet.plugins import Plugins, load_plugins

_COMMENT = re.compile(r"^\s+(\w+): .*?  # (.+)$", re.MULTILINE)


def job_help(job: str, summary: str, config_dir: Path | None = None) -> str:
    """The whole help text."""
    plugins = load_plugins()
    catalog = make_catalog(plugins)
    choices = group_options((*PRESETS, CLUSTER), config_dir=config_dir)
    show = {"sft": " [--show N]", "train": " [--replay RUN]", "eval": " [--replay RESULT]"}.get(job, "")
    lines = [
        f"usage: ramet {job} [key=value …] [--dry-run]{show} [-m] [--cfg job] [--config-dir DIR] [--debug]",
        "",
        f"{summary[0].upper()}{summary[1:]}.",
        "",
        "  --dry-run         check everything, print what would be done and written, do nothing",
        "  --on 8x80GiB      with --dry-run: plan for this hardware instead of the local machine (docs/scaling.md)",
        *(["  --show 3          print the first 3 sequences: what is trained and what is masked"] * (job == "sft")),
        *(["  --replay RUN      recompute a run's updates from recorded rollouts"] * (job == "train")),
        *(["  --replay RESULT   score a finished evaluation once more, without model and network"] * (job == "eval")),
        "  -m                a sweep: one run for every combination of key=1,2 (docs/configuration.md)",
        "  --cfg job         print the resolved configuration and do nothing",
        "  --config-dir DIR  more presets and experiments; hydra_configs/ of the working directory is found by itself",
        "  --trust-recipe FILE  a file of these folders may name programs to run (docs/security.md)",
        "",
        "Presets:",
        *(f"  {group}={'|'.join(names) or '(none found)'}" for group, names in choices.items() if group in PRESETS),
        "",
        "Keys (type = default):",
        *(line for section in JOBS[job] for line in _section(section, catalog, choices)),
        *_broken(plugins),
    ]
    return "\n".join(lines)


def _broken(plugins: Plugins) -> Iterator[str]:
    """Plugins whose options are missing above, as `ramet plugins` lists them."""
    broken = [info for info in plugins.infos if info.broken]
    if broken:
        yield from ("", "Plugins that failed to load:")
    for info in broken:
        yield f"  {info.name}  — {info.distribution}; BROKEN: {' '.join(str(info.broken).split())}"


def _section(section: str, catalog: Catalog, choices: Mapping[str, Sequence[str]]) -> Iterator[str]:
    group = next((group for group in COMPONENTS if group.name == section), None)
    yield ""
    if group is None:
        hint = typing.get_type_hints(Config)[section]
        yield f"{section}={'|'.join(choices[section])}" if section in choices else section
        if dataclasses.is_dataclass(hint):
            yield from keys(typing.cast("type[Any]", hint), section)
        else:
            section_field = next(field for field in dataclasses.fields(Config) if field.name == section)
            yield _line(section, 2, hint, section_field, None)
        return
    components = catalog.components[section]
    names = ",".join(components)
    yield f"{section}=[{names}]" if group.many else f"{section}={'|'.join(components)}"
    for name, component in components.items():
        yield f"  {name}  — {component.plugin}" + (f"; UNUSABLE: {component.unusable}" if component.unusable else "")
        if component.options is not None and not component.unusable:
            path = f"{section}.{name}" if group.many else section
            yield from keys(component.options, f"{path}.params", indent=4)
    wrapper = typing.get_type_hints(Config)[section]
    section_class = typing.get_args(wrapper)[1] if group.many else wrapper
    yield from keys(section_class, f"{section}.NAME" if group.many else section, skip=("name", "params"))


def keys(cls: type[Any], prefix: str, *, indent: int = 2, skip: tuple[str, ...] = ()) -> Iterator[str]:
    """One line for each option of a dataclass, nested ones too, in the order of its fields."""
    hints, comments = typing.get_type_hints(cls), _comments(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if field.name in skip:
            continue
        if dataclasses.is_dataclass(hint):
            yield from keys(typing.cast("type[Any]", hint), f"{prefix}.{field.name}", indent=indent)
            continue
        help = field.metadata.get("help") or comments.get(field.name)
        yield _line(f"{prefix}.{field.name}", indent, hint, field, help)


def _line(key: str, indent: int, hint: Any, field: dataclasses.Field[Any], help: str | None) -> str:
    text = f"{' ' * indent + key:40}  {type_in_words(hint)} = {_default(field)}"
    return f"{text}  # {help}" if help else text


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    elif field.default is not dataclasses.MISSING and field.default != MISSING:
        value = field.default
    else:
        return "required"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value.value) if isinstance(value, Enum) else str(value)


def _comments(cls: type[Any]) -> dict[str, str]:
    try:
        return dict(_COMMENT.findall(inspect.getsource(cls)))
    except (OSError, TypeError):  # a class without source, such as one made in a shell
        return {}
