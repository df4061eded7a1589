"""Conversion of the composed configuration to dataclasses: typed options, values resolved, every problem at once."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ramet.config.catalog import Catalog, Choice, first_line
from ramet.config.schema import Config
from ramet.config.secrets import remember_environment, written_secrets
from ramet.config.sections import COMPONENTS
from ramet.config.settings import TEXT, expected_type
from ramet.errors import ConfigError, ConfigErrors, PluginError, raise_all
from ramet.plugins.plugin_code import raised_at
from ramet.types.option import option_problems

UNSET = ": missing; set it, as in "  # of a key that has no default


def to_config(config: DictConfig, sections: Sequence[str], catalog: Catalog) -> Config:
    """The dataclasses of these sections; the others hold the schema's defaults.

    Types the options in `config` itself, so that a record written from it shows them all. Raises `ConfigErrors`.
    """
    remember_environment(text for _, text in _raw(config, sections))
    components, problems = type_options(config, sections, catalog)
    problems += [*_incomplete(config, sections), *_misread(config, sections)]
    if secrets := list(written_secrets(_raw(config, sections))):
        raise ConfigErrors([*problems, *secrets])  # a plugin's check of its options could repeat one
    values = {}
    for section in sections:
        with suppress(OmegaConfBaseException) if problems else nullcontext():  # what is missing is reported already
            values[section] = _section(config, section, components, problems)
    raise_all(problems)
    return Config(**values)


def add_instances(config: DictConfig, catalog: Catalog, uses: Mapping[str, str | None]) -> list[str]:
    """Make the entries `GROUP.NAME` that have `use`, in place, with the options of what they use and their defaults.

    `uses` maps paths to what the user typed, over what files say. Returns what is wrong. Values that the user typed for
    these entries can be set afterwards.
    """
    written = {
        f"{group.name}.{name}": config[group.name][name].use
        for group in COMPONENTS
        if group.many
        for name in map(str, config[group.name])
    }
    problems = []
    for path, use in {**written, **uses}.items():
        if use is None and path not in uses:
            continue
        group, _, name = path.partition(".")
        try:
            component = catalog.instance(group, name, use)
        except ConfigError as error:
            problems.append(str(error))
            if path in written:
                OmegaConf.update(config, f"{path}.use", use)
            continue
        if path not in written:
            OmegaConf.update(config, path, component.node(), merge=False, force_add=True)
        elif use != written[path]:
            OmegaConf.update(config, f"{path}.params", component.params_node(), merge=False)
        OmegaConf.update(config, f"{path}.use", use)
        problems += _type_params(config, path, component)
    return problems


def type_options(config: DictConfig, sections: Sequence[str], catalog: Catalog) -> tuple[dict[str, Choice], list[str]]:
    """Give the options of every chosen component their types and defaults, in place. Path -> component; problems."""
    problems = _unknown_keys(config, sections)
    components = dict(_chosen(config, sections, catalog, problems))
    for path, component in components.items():
        problems += _type_params(config, path, component)
    return components, problems


def _unknown_keys(config: DictConfig, sections: Sequence[str]) -> list[str]:
    """Keys that were pushed past the schema; Hydra itself allows that with `+`."""
    section_names = {field.name for field in dataclasses.fields(Config)}
    unknown = [str(key) for key in config if key not in section_names]
    unknown += [key for section in sections for key in _foreign(config[section], section)]
    return [f"{key}: no such key" for key in unknown]


def _foreign(node: Any, path: str) -> Iterator[str]:
    if not isinstance(node, DictConfig):
        return
    owner = OmegaConf.get_type(node)
    fields = {f.name for f in dataclasses.fields(owner)} if owner and dataclasses.is_dataclass(owner) else None
    for name in map(str, node):
        if fields is not None and name not in fields:
            yield f"{path}.{name}"
        elif not OmegaConf.is_missing(node, name) and not OmegaConf.is_interpolation(node, name):
            yield from _foreign(node[name], f"{path}.{name}")


def _chosen(
    config: DictConfig, sections: Sequence[str], catalog: Catalog, problems: list[str]
) -> Iterator[tuple[str, Choice]]:
    for group in COMPONENTS:
        if group.name not in sections:
            continue
        node = config[group.name]
        if not group.many and OmegaConf.is_missing(node, "name"):
            continue  # listed with the missing keys
        if not group.many:
            node = {group.name: node}
        for name in map(str, node):
            path = f"{group.name}.{name}" if group.many else group.name
            try:
                instance = catalog.instance(group.name, name, node[name].use) if group.many else None
                yield path, instance or catalog.get(group.name, node[name].name)
            except ConfigError as error:
                problems.append(str(error))


def _type_params(config: DictConfig, path: str, component: Choice) -> list[str]:
    node = OmegaConf.select(config, f"{path}.params")
    if component.options is None:
        refusal = f"{path}.params: {component.name!r} takes no options, got {', '.join(node or ())}"
        return (
            [f"{refusal}; a preset that sets options of one choice must do so in an option of its own"] if node else []
        )
    options_type = None if node is None else OmegaConf.get_type(node)
    if options_type is component.options:
        return []
    if options_type not in (None, dict):
        how = f"{path}={component.name}" if "." not in path else f"{path}.use={component.name}"
        return [f"{path}.params: holds options of another component; choose with {how}"]
    try:
        typed = OmegaConf.merge(component.params_node(), node or {})
    except OmegaConfBaseException as error:
        allowed = ", ".join(field.name for field in dataclasses.fields(component.options))
        return [f"{path}.params: {first_line(error)}; allowed: {allowed}"]
    OmegaConf.update(config, f"{path}.params", typed, merge=False)
    return []


def _raw(config: DictConfig, sections: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every text with its key, interpolations as they were written."""
    for section in sections:
        yield from _texts(OmegaConf.to_container(config[section], resolve=False), section)


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]")
    elif isinstance(value, str):
        yield path, value


def _incomplete(config: DictConfig, sections: Sequence[str]) -> Iterator[str]:
    """Values that are missing, and interpolations that lead nowhere, such as to a variable that is not set."""
    for key, text in _raw(config, sections):
        if text == MISSING:
            yield f"{key}{UNSET}{key}=…"
        elif "${" in text:
            try:
                OmegaConf.select(config, key, throw_on_missing=True)
            except OmegaConfBaseException as error:
                variable = re.search(r"Environment variable '([^']+)'", str(error))
                reason = f"environment variable {variable[1]} is not set" if variable else first_line(error)
                yield f"{key}: {reason} (in {text})"


def _misread(config: DictConfig, sections: Sequence[str]) -> Iterator[str]:
    """Texts that YAML took for a boolean: `name: no`."""
    for key, text in _raw(config, sections):
        if text in ("True", "False") and "[" not in key and expected_type(config, key) in TEXT:
            words = "yes, on or true" if text == "True" else "no, off or false"
            yield f"{key}: takes a text, got the boolean {text}, as YAML reads {words}; write it in quotes"


def _section(config: DictConfig, section: str, components: dict[str, Choice], problems: list[str]) -> Any:
    node = config[section]
    if section in components:
        return _wrapped(node, section, components[section], problems)
    entries = {path.partition(".")[2]: c for path, c in components.items() if path.startswith(f"{section}.")}
    if entries:
        return {name: _wrapped(node[name], f"{section}.{name}", c, problems) for name, c in entries.items()}
    return OmegaConf.to_object(node) if OmegaConf.is_config(node) else node


def _wrapped(node: DictConfig, path: str, component: Choice, problems: list[str]) -> Any:
    """The core's dataclass of a component, with the plugin's own in `params`."""
    shell = node.copy()
    shell.params = None
    wrapper: Any = OmegaConf.to_object(shell)
    if component.options is not None:
        wrapper.params = _params(node.params, path, component, problems)
    return wrapper


def _params(node: DictConfig, path: str, component: Choice, problems: list[str]) -> Any:
    names = OmegaConf.to_container(node, resolve=False) or {}
    try:
        options = OmegaConf.to_object(node)
        if dataclasses.is_dataclass(options):
            problems += [f"{path}.params.{problem}" for problem in option_problems(options)]
        return options
    except OmegaConfBaseException:  # missing, or leads nowhere: no matter of the plugin's
        raise
    except (ValueError, ConfigError) as error:  # a range check in the plugin's __post_init__
        text = str(error)
        dot = "." if text.split(" ", 1)[0] in names else ": "
        problems.append(f"{path}.params{dot}{text}")
    except Exception as error:
        raise PluginError(
            f"plugin {component.plugin}: {component.group} {component.name!r} could not check its options: {error!r}"
            f"{raised_at(error)}"
        ) from error
    return None
