"""Recipes: the files `experiment/NAME.yaml` that a job finds, the user's own and those that come with ramet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ramet.config.catalog import suggest
from ramet.config.hydra_adapter import ConfigFile, files_of, running, unread_files
from ramet.config.needs import missing, needs_of
from ramet.errors import ConfigError

GROUP = "experiment"
LABELS = ("Needs", "Hardware", "Reproduces")  # of comments that say so: `# Hardware: 8x80GiB`
OVERRIDE = "override /"
Written = tuple[dict[str, Any], DictConfig]  # group -> what is chosen; sections


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One file."""

    name: str
    provider: str  # who has it: `ramet`, the working directory, --config-dir, or a plugin
    path: Path
    hidden: tuple[str, ...]  # others that have a file of this name, which is never read
    text: str
    needs: tuple[str, ...]  # requirements, as pip takes them
    missing: tuple[str, ...]  # those that are not installed
    choices: Mapping[str, Any] = field(default_factory=dict)  # group -> what it chooses, of its bases too
    settings: Mapping[str, Any] = field(default_factory=dict)  # sections as they are written, of its bases too
    hardware: str = ""  # the GPUs that it is written for, as `--on` takes them (8x80GiB)
    reproduces: str = ""  # the published run or table that it repeats
    unreadable: str = ""  # why there is no text

    @property
    def description(self) -> str:
        """The first line of its first comment."""
        lines = (line.removeprefix("#").strip() for line in self.text.splitlines() if line.startswith("#"))
        others = ("@package", *(f"{label}:" for label in LABELS))
        return next((line for line in lines if line and not line.startswith(others)), "")

    @property
    def job(self) -> str:
        """The job that it is for: the training of its tasks, else of its traces, else an evaluation."""
        if self._value("data", "train"):
            return "train"
        return "sft" if self._value("sft", "data") else "eval"

    @property
    def model(self) -> str:
        """`model.path`; empty if it is the user's."""
        path = self._value("model", "path")
        return path if isinstance(path, str) and path != "???" else ""

    @property
    def data(self) -> tuple[str, ...]:
        """Return data or benchmarks that it names; empty if they are the user's."""
        of_job = {"train": self._value("data", "train"), "sft": self._value("sft", "data")}
        listed = of_job.get(self.job, self.choices.get("benchmarks"))
        return tuple(map(str, listed)) if isinstance(listed, list) else ()

    def _value(self, section: str, key: str) -> Any:
        values = self.settings.get(section)
        return values.get(key) if isinstance(values, dict) else None


def recipes(config_dir: Path | None = None) -> list[Recipe]:
    """All of them, by name, those that cannot be read among them."""
    found, read = _found(config_dir), dict[str, Written]()
    return [_recipe(name, found, read) for name in sorted(found)]


def recipe(name: str, config_dir: Path | None = None) -> Recipe:
    """The one of this name. Raises `ConfigError` if there is none, with what there is, and if it cannot be read."""
    found = _found(config_dir)
    if name not in found:
        raise ConfigError(f"no recipe {name!r}.{suggest(name, found)} Recipes: {', '.join(sorted(found)) or 'none'}")
    parsed = _recipe(name, found, {})
    if parsed.unreadable:
        raise ConfigError(f"{parsed.path}: cannot be read: {parsed.unreadable}")
    return parsed


def unread_recipes(config_dir: Path | None = None) -> list[str]:
    """Files of the user's that no recipe is read from, and why (`hydra_adapter.unread_files`)."""
    with running(config_dir):
        return unread_files()


def _found(config_dir: Path | None) -> dict[str, list[ConfigFile]]:
    """Name -> its files in the order in which they are looked for."""
    with running(config_dir):
        return files_of(GROUP)


def _recipe(name: str, found: Mapping[str, list[ConfigFile]], read: dict[str, Written]) -> Recipe:
    first, *others = found[name]
    text = unreadable = ""
    try:
        text = first.path.read_text(encoding="utf-8")
    except OSError as error:
        unreadable = error.strerror or type(error).__name__
    except UnicodeDecodeError as error:
        unreadable = str(error)
    needs = needs_of(text)
    choices: dict[str, Any] = {}
    settings: Any = {}
    with suppress(OSError, ValueError, YAMLError, OmegaConfBaseException):  # composing it says what is wrong
        choices, sections = _written(name, found, read)
        settings = OmegaConf.to_container(sections)
    return Recipe(
        name=name,
        provider=first.provider,
        path=first.path,
        hidden=tuple(dict.fromkeys(other.provider for other in others if other.path.resolve() != first.path.resolve())),
        text=text,
        needs=tuple(needs),
        missing=tuple(missing(needs)),
        choices=choices,
        settings=settings,
        hardware=_comment("Hardware", text),
        reproduces=_comment("Reproduces", text),
        unreadable=unreadable,
    )


def _comment(label: str, text: str) -> str:
    match = re.search(rf"^# {label}: (.+)$", text, re.MULTILINE)
    return match[1].strip() if match else ""


def _written(
    name: str, found: Mapping[str, list[ConfigFile]], read: dict[str, Written], inside: tuple[str, ...] = ()
) -> Written:
    """Return choices and sections of a recipe over the recipes that it begins with. `read`: the recipes before it.

    Raises as readers of YAML do, and `ValueError` for what is not a mapping.
    """
    if name in read:
        return read[name]
    own = OmegaConf.create(found[name][0].path.read_text(encoding="utf-8"))
    if not isinstance(own, DictConfig):
        raise ValueError(f"{name}: not a mapping")
    defaults: Any = OmegaConf.to_container(own.pop("defaults", OmegaConf.create([])))
    choices: dict[str, Any] = {}
    bases: list[DictConfig] = []
    for entry in defaults:
        if isinstance(entry, dict):
            pairs = [(str(key), value) for key, value in entry.items()]
            choices |= {key.removeprefix(OVERRIDE): value for key, value in pairs if key.startswith(OVERRIDE)}
        elif isinstance(entry, str) and entry in found and entry not in (*inside, name):
            chosen, base = _written(entry, found, read, (*inside, name))
            choices |= chosen
            bases.append(base)
    merged = OmegaConf.merge(*bases, own)
    assert isinstance(merged, DictConfig)
    read[name] = choices, merged
    return read[name]
