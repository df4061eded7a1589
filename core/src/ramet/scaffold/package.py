"""Writing the package: every check first, then the templates with the names filled in.

One name serves as registered name, entry point, module and distribution.
"""

from __future__ import annotations

import builtins
import datetime
import importlib.resources
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from string import Template

import ramet
from ramet.config.sections import OWN_TRACKERS
from ramet.errors import ConfigError, raise_all
from ramet.plugins import CONTRACT_VERSION, Plugins, load_plugins
from ramet.plugins.extensions import TRACKERS, extensions
from ramet.scaffold.kinds import KINDS, Kind, camel

SUFFIX = ".tmpl"
PATTERN = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
LONGEST = 40  # the registry's limit, less the affixes of a name in modules and distributions
# What the README says of its tests and of its contract version.
ABOUT_PLUGIN = """`ramet plugins` should list `{name}`; BROKEN means that it failed to load. One test says what
the {noun} does. The other is `check_plugin("{name}")`, Ramet's conformance kit: it builds everything that the plugin
registers and checks it against the contract, so that violations show before a run."""
ABOUT_EXTENSION = "The tests say what the {noun} does."
PIN_PLUGIN = """ `ramet_contract = "{contract}"` in
   `src/{module}/__init__.py` says which contract this plugin was built for; another one is refused at load."""
HOOK_PARAMETER = "register"  # a tool of this name would hide it


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that was written."""

    kind: Kind
    name: str
    distribution: str
    folder: Path
    files: tuple[str, ...]  # relative to `folder`, sorted


def write_package(kind: str, name: str, folder: Path | None = None) -> Package:
    """Write a distribution that offers `name` into `folder` (default: `ramet-NAME` in the working directory).

    Raises `ConfigErrors` with all problems: an unknown kind, a name that is not allowed or taken, a folder that is not
    empty. Nothing is written then.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind: no kind {kind!r}; allowed: {', '.join(KINDS)}")
    distribution = f"ramet-{name.replace('_', '-')}"
    target = Path(distribution) if folder is None else folder
    raise_all([*_check_name(KINDS[kind], name), *_check_folder(target)])
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
    major, minor = re.findall(r"\d+", ramet.__version__)[:2]
    pin = f">={ramet.__version__},<{major}.{int(minor) + 1}"
    core = f"ramet[{kind.extra}]{pin}" if kind.extra else f"ramet{pin}"
    tests = ["pytest>=8", *([f"ramet[{kind.test_extra}]{pin}"] if kind.test_extra else [])]
    return {
        "name": name,
        "Name": camel(name),
        "module": f"ramet_{name}",
        "distribution": f"ramet-{name.replace('_', '-')}",
        "noun": kind.noun,
        "use": kind.use.format(name=name),
        "core": core,
        "contract": CONTRACT_VERSION,
        "dependencies": ", ".join(f'"{dependency}"' for dependency in [core, *kind.needs]),
        "test_dependencies": ", ".join(f'"{dependency}"' for dependency in tests),
        "group": f'"{kind.group}"' if "." in kind.group else kind.group,
        "target": ":".join(filter(None, [f"ramet_{name}", kind.attribute.format(name=name)])),
        "about": (ABOUT_PLUGIN if kind.registry else ABOUT_EXTENSION).format(name=name, noun=kind.noun),
        "pin": (PIN_PLUGIN if kind.registry else "").format(contract=CONTRACT_VERSION, module=f"ramet_{name}"),
        "year": str(datetime.date.today().year),
    }


def _walk(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[str, str]]:
    """(path without the suffix, text) of every template below."""
    for child in folder.iterdir():
        if child.is_dir():
            yield from _walk(child, path / child.name)
        elif child.name.endswith(SUFFIX):
            yield str(path / child.name.removesuffix(SUFFIX)), child.read_text(encoding="utf-8")


def _check_name(kind: Kind, name: str) -> list[str]:
    """The problem of this name, in words for the user."""
    if not PATTERN.fullmatch(name) or len(name) > LONGEST:
        better = re.sub(r"[^a-z0-9]+", "_", name.lower()).lstrip("_0123456789")[:LONGEST].rstrip("_")
        hint = f" Did you mean {better!r}?" if PATTERN.fullmatch(better) and better != name else ""
        return [
            f"name: {name!r} is not allowed: lower-case letters, digits and single underscores between them, a letter "
            f"first, at most {LONGEST} characters.{hint}"
        ]
    if name.startswith("ramet_") or name == "ramet":
        rest = name.removeprefix("ramet").strip("_") or "weather"
        return [
            f"name: leave 'ramet' out of {name!r}: {rest!r} becomes the distribution ramet-{rest.replace('_', '-')}"
        ]
    defined = kind.defines.format(name=name, Name=camel(name))
    if keyword.iskeyword(defined) or hasattr(builtins, defined) or defined in (*ramet.__all__, HOOK_PARAMETER):
        return [f"name: {name!r} would hide a name of Python or of ramet in the module ({defined}); choose another"]
    return _taken(kind, name, load_plugins())


def _taken(kind: Kind, name: str, plugins: Plugins) -> list[str]:
    """Return why the name cannot be used again: loading plugins would fail, so nothing is written."""
    if not kind.registry:
        own_trackers = dict.fromkeys(OWN_TRACKERS, "ramet") if kind.group == TRACKERS else {}
        offered = {entry.name: entry.distribution for entry in extensions(kind.group)} | own_trackers
        return (
            [f"name: the {kind.noun} {name!r} is offered by {offered[name]}; choose another"] if name in offered else []
        )
    plugin = next((info for info in plugins.infos if info.name == name), None)
    if plugin is not None:
        return [f"name: {name!r} is the name of a plugin that is installed ({plugin.distribution}); choose another"]
    registry = getattr(plugins.registries, kind.registry)
    if name in registry:
        return [f"name: the {kind.noun} {name!r} is offered by {registry.get(name).distribution}; choose another"]
    return []


def _check_folder(folder: Path) -> list[str]:
    if folder.is_dir():
        first_name = next((path.name for path in sorted(folder.iterdir())), None)
        return (
            [f"folder: {str(folder)!r} is not empty (it has {first_name!r}); choose another with --dir"]
            if first_name
            else []
        )
    return [f"folder: {str(folder)!r} is a file; choose another with --dir"] if folder.exists() else []
