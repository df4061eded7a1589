"""Origins of a value: the schema and files that a configuration was composed of, and what the user typed.

Later layers win. Values are shown as they were written: an interpolation stays one, so no secret is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ramet.config.resolved import plain
from ramet.config.sections import GROUPS, PRESETS
from ramet.config.settings import unknown_key
from ramet.errors import ConfigError

CORE_CHOICES = "config"  # conf/config.yaml, which begins every composition
COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One node of the schema, or one file."""

    name: str  # schema, branch_policy/arpo, experiment/quickstart
    package: str  # the section that its keys belong to
    provider: str  # plugin of a node; search-path entry of a file
    path: str
    config: DictConfig

    @property
    def file(self) -> Path:
        """The file that it was read from; not for nodes of the schema."""
        return Path(self.path.removeprefix("file://")) / f"{self.name}.yaml"

    def sets(self, key: str) -> bool:
        try:
            self.value(key)
        except KeyError:
            return False
        return True

    def value(self, key: str) -> Any:
        """Return this layer's value of `key` as it was written: an interpolation of it or of a section that it is in.

        A layer whose package is within `key` sets a part of it. Raises `KeyError` if it does not set it.
        """
        node: Any = OmegaConf.to_container(self.config, resolve=False)
        if self.package == key or self.package.startswith(f"{key}."):
            return node
        if self.package and not key.startswith(f"{self.package}."):
            raise KeyError(key)
        return _part(node, key.removeprefix(f"{self.package}.") if self.package else key)

    @property
    def kind(self) -> str:
        if self.path.startswith("structured://"):
            return "default"
        group = self.name.partition("/")[0]
        return "experiment" if group == "experiment" else "choice" if self.name == CORE_CHOICES else "preset"

    @property
    def where(self) -> str:
        if self.name == "schema":
            return "the core's schema"
        return f"{self.name} of {self.provider}" if self.kind == "default" else f"{self.name} in {self.path}"


def _part(node: Any, key: str) -> Any:
    """Raises `KeyError`. Names in files may hold dots, so the key is not split."""
    if isinstance(node, str) and "${" in node:
        return node
    for name, part in node.items() if isinstance(node, dict) else ():
        if key == str(name):
            return part
        if key.startswith(f"{name}."):
            with suppress(KeyError):
                return _part(part, key.removeprefix(f"{name}."))
    raise KeyError(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOrigin:
    """One step on the way to a value."""

    kind: str  # default, preset, experiment, command line
    value: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """A composed configuration taken apart."""

    layers: Sequence[Layer]
    chosen_by: dict[str, str]  # group -> name of the layer that overrode it, or the command line
    overrides: Sequence[str]
    tree: DictConfig  # the result, options typed
    job: str

    def origins(self, key: str) -> list[ValueOrigin]:
        """Everything that set `key`, the value that counts last. Raises `ConfigError` for an unknown key."""
        if key in GROUPS:
            return [self._choice(key)]
        problem = unknown_key(self.tree, key, self.job)
        if problem:
            raise ConfigError(problem)
        if OmegaConf.is_dict(OmegaConf.select(self.tree, key)):
            example = next(iter(OmegaConf.select(self.tree, key)), "KEY")
            raise ConfigError(f"{key}: is a section; ask for one of its keys, as in {key}.{example}")
        origins = [*self._written(key), *self._typed(key)]
        return origins or [self._option(key)]

    def _written(self, key: str) -> Iterator[ValueOrigin]:
        for layer in self.layers:
            try:
                value = layer.value(key)
            except KeyError:
                continue
            yield ValueOrigin(kind=layer.kind, value=text_of(value), where=layer.where)

    def _typed(self, key: str) -> list[ValueOrigin]:
        typed = [text for text in self.overrides if text.partition("=")[0].lstrip("+") == key]
        return [ValueOrigin(kind=COMMAND_LINE, value=text.partition("=")[2], where=text) for text in typed[-1:]]

    def _option(self, key: str) -> ValueOrigin:
        """A default that no layer wrote: the options of a component that a file chose by its name."""
        value = OmegaConf.to_container(self.tree, resolve=False)
        for part in key.split("."):
            assert isinstance(value, dict)
            value = value[part]
        return ValueOrigin(kind="default", value=text_of(value), where=f"options of {key.partition('.params')[0]}")

    def _choice(self, group: str) -> ValueOrigin:
        value = ", ".join(self._chosen(group)) or "none"
        by = self.chosen_by.get(group)
        if by == COMMAND_LINE:
            typed = [text for text in self.overrides if text.partition("=")[0].lstrip("+") == group]
            return ValueOrigin(kind=COMMAND_LINE, value=value, where=typed[-1])
        layer = next(candidate for candidate in self.layers if candidate.name == (by or CORE_CHOICES))
        return ValueOrigin(kind=layer.kind, value=value, where=layer.where)

    def _chosen(self, group: str) -> list[str]:
        if group in PRESETS:
            return [layer.name.partition("/")[2] for layer in self.layers if layer.name.startswith(f"{group}/")]
        node = self.tree[group]
        return [str(node.name)] if "name" in node else [str(name) for name in node]


def text_of(value: Any) -> str:
    """Return a value as it would be written on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return "[" + ",".join(text_of(item) for item in value) + "]"
    return str(plain(value))
