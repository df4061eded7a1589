"""Presets: the files `algorithm/NAME.yaml` of core and plugins, with what their first comments say about them.

    # Paper: DAPO, arXiv 2503.14476
    # Differs: what is not as in algorithm=grpo
    # Use: when to choose it

A value continues on comment lines that begin with more than one space.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ramet.config.catalog import suggest
from ramet.config.gone import shown
from ramet.config.hydra_adapter import ConfigFile, files_of, running
from ramet.errors import ConfigError

GROUP = "algorithm"
OVERRIDE = "override /"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One file."""

    name: str
    provider: str  # ramet, a plugin, the working directory or --config-dir
    path: Path
    paper: str  # citation; this and the next two are empty where the file does not say it
    differs: str  # from algorithm=grpo
    use: str  # when to choose it
    sets: tuple[str, ...]  # choices and keys, as they are typed

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")


def presets(config_dir: Path | None = None) -> list[Preset]:
    """Return all presets by name, `grpo` first, with which the others are compared."""
    listed = [_preset(name, files[0]) for name, files in _files(config_dir).items()]
    return sorted(listed, key=lambda preset: (preset.name != "grpo", preset.name))


def preset(name: str, config_dir: Path | None = None) -> Preset:
    """Return the preset of this name. Raises `ConfigError` if there is none, with the presets that there are."""
    files = _files(config_dir)
    if name not in files:
        raise ConfigError(f"algorithm: no {name!r}.{suggest(name, files)} Presets: {', '.join(sorted(files))}")
    return _preset(name, files[name][0])


def _files(config_dir: Path | None) -> dict[str, list[ConfigFile]]:
    with running(config_dir):
        return files_of(GROUP)


def _preset(name: str, file: ConfigFile) -> Preset:
    """Raises `ConfigError` for a file that cannot be read."""
    try:
        text = file.path.read_text(encoding="utf-8")
        tree = OmegaConf.to_container(OmegaConf.create(text))
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{file.path}: cannot be read: {error}") from error
    return Preset(
        name=name,
        provider="ramet" if file.provider == "main" else file.provider,
        path=file.path,
        paper=_label("Paper", text),
        differs=_label("Differs", text),
        use=_label("Use", text),
        sets=tuple(_sets(tree)) if isinstance(tree, dict) else (),
    )


def _label(label: str, text: str) -> str:
    match = re.search(rf"^# {label}: (.+(?:\n#  .+)*)", text, re.MULTILINE)
    return " ".join(match[1].replace("\n#", " ").split()) if match else ""


def _sets(tree: Mapping[Any, Any]) -> Iterator[str]:
    for entry in tree.get("defaults") or ():
        if isinstance(entry, dict):
            yield from (f"{str(group).removeprefix(OVERRIDE)}={shown(name)}" for group, name in entry.items())
    yield from _keys({key: value for key, value in tree.items() if key != "defaults"})


def _keys(section: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={shown(value)}"
