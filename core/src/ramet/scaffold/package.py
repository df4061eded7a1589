"""Writing the package: every check first, then the templates with the names filled in."""

from __future__ import annotations

import datetime
import importlib.resources
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from string import Template

import ramet
from ramet.errors import ConfigError, raise_all
from ramet.plugins import CONTRACT_VERSION
from ramet.scaffold.kinds import KINDS, Kind, camel
from ramet.scaffold.names import check_name

SUFFIX = ".tmpl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What was written."""

    kind: Kind
    name: str
    distribution: str
    folder: Path
    files: tuple[str, ...]  # relative to `folder`, sorted


def write_package(kind: str, name: str, folder: Path | None = None) -> Package:
    """Write a distribution that offers `name` into `folder` (default: `ramet-NAME` in the working directory).

    Raises `ConfigErrors` with everything that is wrong: an unknown kind, a name that is not allowed or taken, a folder
    that holds something already. Nothing is written then.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind: no kind {kind!r}; allowed: {', '.join(KINDS)}")
    distribution = f"ramet-{name.replace('_', '-')}"
    target = Path(distribution) if folder is None else folder
    raise_all([*check_name(KINDS[kind], name), *_check_folder(target)])
    texts = render(KINDS[kind], name)
    try:
        for path, text in texts.items():
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"folder: cannot write {str(target)!r}: {error}") from error
    return Package(kind=KINDS[kind], name=name, distribution=distribution, folder=target, files=tuple(sorted(texts)))


def render(kind: Kind, name: str) -> dict[str, str]:
    """Path in the package -> text, for every file."""
    values = _values(kind, name)
    templates = importlib.resources.files("ramet.scaffold") / "templates"
    texts = {}
    for part in ("common", kind.name):
        for path, template in _walk(templates / part, PurePosixPath()):
            filled = path.replace("PACKAGE", values["module"]).replace("NAME", name)
            texts[filled] = Template(template).substitute(values)
    return texts


def _values(kind: Kind, name: str) -> dict[str, str]:
    major, minor = ramet.__version__.split(".")[:2]
    core = f"ramet>={major}.{minor},<{major}.{int(minor) + 1}"
    dependencies = [core, "torch>=2.9"] if kind.torch else [core]
    return {
        "name": name,
        "Name": camel(name),
        "module": f"ramet_{name}",
        "distribution": f"ramet-{name.replace('_', '-')}",
        "noun": kind.noun,
        "use": kind.use.format(name=name),
        "core": core,
        "contract": CONTRACT_VERSION,
        "dependencies": ", ".join(f'"{one}"' for one in dependencies),
        "year": str(datetime.date.today().year),
    }


def _walk(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[str, str]]:
    """(path without the suffix, text) of every template below."""
    for one in folder.iterdir():
        if one.is_dir():
            yield from _walk(one, path / one.name)
        elif one.name.endswith(SUFFIX):
            yield str(path / one.name.removesuffix(SUFFIX)), one.read_text(encoding="utf-8")


def _check_folder(folder: Path) -> list[str]:
    if folder.is_dir():
        found = next((path.name for path in sorted(folder.iterdir())), None)
        return (
            [f"folder: {str(folder)!r} is not empty (it holds {found!r}); choose another with --dir"] if found else []
        )
    return [f"folder: {str(folder)!r} is a file; choose another with --dir"] if folder.exists() else []
