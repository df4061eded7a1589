"""Recipes: the files `experiment/NAME.yaml` that a job finds, the user's own and those that come with ramet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ramet.config.catalog import suggest
from ramet.config.hydra_adapter import ConfigFile, files_of, register, running, unread_files
from ramet.config.needs import missing, needs_of
from ramet.errors import ConfigError

GROUP = "experiment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One that `experiment=NAME` chooses."""

    name: str
    provider: str  # ramet, a plugin, `working directory` or `--config-dir`
    path: Path
    hidden: tuple[str, ...]  # providers of files of the same name, which are not read
    text: str
    needs: tuple[str, ...]  # requirements, as pip takes them
    missing: tuple[str, ...]  # those that are not installed
    unreadable: str = ""  # why there is no text

    @property
    def description(self) -> str:
        """The first line of its first comment."""
        lines = (line.removeprefix("#").strip() for line in self.text.splitlines() if line.startswith("#"))
        return next((line for line in lines if line and not line.startswith(("@package", "Needs:"))), "")


def recipes(config_dir: Path | None = None) -> list[Recipe]:
    """All of them, by name, those that cannot be read among them."""
    return [_recipe(name, files) for name, files in sorted(_found(config_dir).items())]


def recipe(name: str, config_dir: Path | None = None) -> Recipe:
    """The one of this name. Raises `ConfigError` if there is none, with what there is, and if it cannot be read."""
    files = _found(config_dir)
    if name not in files:
        raise ConfigError(f"no recipe {name!r}.{suggest(name, files)} Recipes: {', '.join(sorted(files)) or 'none'}")
    parsed = _recipe(name, files[name])
    if parsed.unreadable:
        raise ConfigError(f"{parsed.path}: cannot be read: {parsed.unreadable}")
    return parsed


def unread_recipes(config_dir: Path | None = None) -> list[str]:
    """What is wrong with the user's files of which nothing is read."""
    register()
    with running(config_dir):
        return unread_files()


def _found(config_dir: Path | None) -> dict[str, list[ConfigFile]]:
    register()
    with running(config_dir):
        return files_of(GROUP)


def _recipe(name: str, files: list[ConfigFile]) -> Recipe:
    first, *others = files
    text = unreadable = ""
    try:
        text = first.path.read_text(encoding="utf-8")
    except OSError as error:
        unreadable = error.strerror or str(error)
    except UnicodeDecodeError as error:
        unreadable = str(error)
    needs = needs_of(text)
    return Recipe(
        name=name,
        provider=first.provider,
        path=first.path,
        hidden=tuple(file.provider for file in others),
        text=text,
        needs=tuple(needs),
        missing=tuple(missing(needs)),
        unreadable=unreadable,
    )
