"""Choices: the components that plugins and the core offer, as typed nodes of the configuration.

A plugin's dataclass becomes a node `{name, params}` of its group, or `{NAME: {params}}` where several can be chosen.
A dataclass that OmegaConf cannot type makes only its own component unusable.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ramet.config.choices import accept_enum_values
from ramet.config.schema import BenchmarkConfig, ComponentConfig, RewardConfig, RolloutStepConfig, ToolConfig
from ramet.config.sections import COMPONENTS
from ramet.errors import ConfigError
from ramet.plugins import Plugins
from ramet.plugins.other_systems import served_instead
from ramet.plugins.registry import NAME
from ramet.plugins.sources import GROUP, MODULES, how_to_install
from ramet.types.option import option_problems

LOCAL = "hydra_configs"  # recipes of the working directory
WRAPPERS: dict[str, type[Any]] = {
    "rollout_step": RolloutStepConfig,
    "tools": ToolConfig,
    "rewards": RewardConfig,
    "benchmarks": BenchmarkConfig,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One name that a group offers."""

    group: str
    name: str
    options: type[Any] | None  # the plugin's dataclass
    plugin: str
    unusable: str | None = None  # why its options cannot be typed

    def node(self) -> DictConfig:
        """The typed configuration node, with the plugin's defaults."""
        node: DictConfig = OmegaConf.structured(WRAPPERS.get(self.group, ComponentConfig))
        if "name" in node.keys():  # `in node` is False while the value is missing
            node.name = self.name
        node.params = self.params_node()
        return node

    def params_node(self) -> DictConfig | None:
        return None if self.options is None else OmegaConf.structured(self.options)


@dataclass(slots=True)
class Catalog:
    """Everything that can be chosen in this process."""

    components: dict[str, dict[str, Choice]]  # group -> name -> component
    absent: str = ""  # why a name may be missing, for the end of a message
    recorded: dict[tuple[str, str], str] = field(default_factory=dict)  # (group, name) -> who offered it to this run

    def get(self, group: str, name: str) -> Choice:
        """Raises `ConfigError` for a name that no package offers or whose options are unusable."""
        choice = self.components[group].get(name)
        if choice is None:
            raise ConfigError(self.unknown(group, name, self.components[group]))
        if choice.unusable:
            raise ConfigError(f"{group}: {name!r} of plugin {choice.plugin!r} cannot be used: {choice.unusable}")
        return choice

    def instance(self, group: str, name: str, use: str | None) -> Choice:
        """Return the entry `GROUP.NAME`: the component that `use` names, or the one of its own name.

        Raises `ConfigError`, as `get` does, and for a name that cannot be one.
        """
        if use is None:
            return self.get(group, name)
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"{group}.{name}: this name is not allowed: lower-case letters, digits and underscores, a letter "
                "first, at most 63 characters"
            )
        if use not in self.components[group]:
            raise ConfigError(self.unknown(f"{group}.{name}.use", use, self.components[group]))
        return self.get(group, use)

    def unknown(self, group: str, name: str, allowed: Iterable[str]) -> str:
        """The message for a name that `group` does not have."""
        allowed = sorted(allowed)
        installed = f"Installed: {', '.join(allowed) or 'none'}{self.absent}"
        if how := how_to_install(name):
            return f"{group}: no {name!r}. {how}. {installed}"
        if (group, name) in self.recorded:
            return f"{group}: no {name!r}. When this run began, {self.recorded[group, name]}. {installed}"
        if group == "benchmarks" and Path(name).suffix:
            return (
                f"{group}: {name!r} is a file, and benchmarks are chosen by name: "
                f"benchmarks.own.use=files 'benchmarks.own.params.paths=[{name}]' "
                "'benchmarks.own.params.metrics={em: qa_em}' measures on it (ramet-benchmarks); `ramet train` "
                f"validates on a file with data.valid. {installed}"
            )
        close = served_instead(group, name) or suggest(name, allowed) or self.in_another_group(group, name)
        return f"{group}: no {name!r}.{close} {installed}{'' if close or self.absent else self._own(group)}"

    def in_another_group(self, group: str, name: str) -> str:
        """` Did you mean GROUP=NAME?`, or nothing."""
        suggestions = [
            f"{other.name}=[{name}]" if other.many else f"{other.name}={name}"
            for other in COMPONENTS
            if other.name != group and name in self.components.get(other.name, {})
        ]
        return f" Did you mean {' or '.join(suggestions)}?" if suggestions else ""

    def _own(self, group: str) -> str:
        """Name what is often not known, where no other text says why a name is missing."""
        if group == "engine" or os.environ.get(MODULES):
            return ""
        return (
            f". A module of yours is loaded with PYTHONPATH=FOLDER {MODULES}=MODULE, a package that is installed by "
            f"its [project.entry-points.{GROUP}]"
        )

    def unknown_choice(self, group: str, name: str, names: Sequence[str]) -> str:
        """The message for `group=name` where the group, which may be one of files only, has these names."""
        component = self.components.get(group, {}).get(name)
        if component is not None and component.unusable:
            return f"{group}: {name!r} of plugin {component.plugin} cannot be used: {component.unusable}"
        if group in self.components:
            return self.unknown(group, name, names)
        where = f" (`ramet recipes` describes them; yours are in {LOCAL}/ of the working directory, or in --config-dir)"
        available = f"{', '.join(names) or 'none'}{where if group == 'experiment' else ''}"
        how = how_to_install(name)
        close = f" {how}." if how else served_instead(group, name)
        close = close or suggest(name, names) or self.in_another_group(group, name)
        return f"{group}: no {name!r}.{close} Available: {available}"


def make_catalog(plugins: Plugins) -> Catalog:
    """The catalog of these plugins and of the core's engines."""
    accept_enum_values()
    components: dict[str, dict[str, Choice]] = {group.name: {} for group in COMPONENTS}
    for engine in plugins.engines:
        components["engine"][engine.name] = Choice(
            group="engine", name=engine.name, options=engine.config, plugin=engine.plugin
        )
    for group in COMPONENTS:
        if group.kind is None:
            continue
        for entry in getattr(plugins.registries, group.kind):
            components[group.name][entry.name] = Choice(
                group=group.name,
                name=entry.name,
                options=entry.config,
                plugin=f"{entry.plugin} ({entry.distribution})",
                unusable=unusable_options(entry.config),
            )
    return Catalog(components=components, absent=plugins.absent)


def recorded_offers(manifest: Path) -> dict[tuple[str, str], str]:
    """(group, name) -> who offered it when the run of this manifest began, and what to do; empty if there is none.

    Read as plain JSON, and no error is raised: whether the run may continue is decided by its own checks.
    """
    try:
        plugins = json.loads(manifest.read_text(encoding="utf-8"))["plugins"]
        return {(group, name): _offered_by(plugin) for plugin in plugins for group in plugin["offers"]
                for name in plugin["offers"][group]}  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _offered_by(plugin: dict[str, Any]) -> str:
    if plugin["distribution"] == f"module {plugin['name']}":
        return f"the module {plugin['name']} offered it: name it in RAMET_PLUGINS again"
    return f"{plugin['distribution']} {plugin['version']} offered it: install it again"


def unusable_options(options: type[Any] | None) -> str | None:
    """Why a plugin's dataclass cannot be a part of the configuration."""
    if options is None:
        return None
    try:
        OmegaConf.structured(options)
    except (OmegaConfBaseException, ValueError, TypeError, NameError) as error:
        return f"its options {options.__name__} cannot be typed: {first_line(error)}"
    return None


def typed_options(options: type[Any], values: Mapping[str, Any]) -> Any:
    """An instance of a plugin's dataclass, nested ones included. Raises `ConfigError` and what `__post_init__` does."""
    try:
        typed = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(options), dict(values)))
    except OmegaConfBaseException as error:
        raise ConfigError(first_line(error)) from error
    if problems := list(option_problems(typed)):
        raise ConfigError("; ".join(problems))
    return typed


def suggest(word: str, allowed: Iterable[str], under: str = "") -> str:
    """` Did you mean 'x'?`, or nothing. `under` is the section of the names."""
    names = {name.lower(): name for name in allowed}
    close = difflib.get_close_matches(word.lower(), list(names), n=1)
    return f" Did you mean {(f'{under}.' if under else '') + names[close[0]]!r}?" if close else ""


def first_line(error: BaseException) -> str:
    """The first line of a message; OmegaConf and Hydra put their own context on the others."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
