"""The one module that knows Hydra: its store, search path, grammar of overrides, composition and sweeps."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import entry_points
from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra import main as hydra_main
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.core.plugins import Plugins as HydraPlugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.config_source import ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ramet.config.catalog import LOCAL, Catalog, Choice, first_line, make_catalog, suggest
from ramet.config.choices import accept_enum_values
from ramet.config.gone import GONE
from ramet.config.needs import missing, needs_of
from ramet.config.provenance import COMMAND_LINE, Layer
from ramet.config.schema import Config
from ramet.config.sections import COMPONENTS, PRESETS
from ramet.config.settings import expected_type, leaf_keys
from ramet.errors import ConfigError
from ramet.plugins import load_plugins
from ramet.plugins.extensions import package_folders
from ramet.plugins.sources import PRESETS as PRESET_PACKAGES
from ramet.plugins.sources import blocked_plugins

_config_dir: ContextVar[Path | None] = ContextVar("config_dir", default=None)
accept_enum_values()  # here, since a launcher's fresh process composes before it calls any code of Ramet's

# Hydra copies its store with every composition, a third of its time, and reads copies of the nodes in any case.
setattr(ConfigStore, "__deepcopy__", lambda store, _: store)  # noqa: B010  # mypy does not allow the assignment
_stored: dict[tuple[str, str], Choice] = {}  # (group, name) -> what the store holds; a node takes milliseconds to make

OWN, CHOSEN_FOLDER, SHIPPED = "working directory", "--config-dir", "ramet"  # providers of the search path

__all__ = ["ConfigFile", "Override", "SweepRefused", "compose_tree", "files_of", "group_options", "layers_of",
           "names_of", "override", "parse", "register", "running", "sweep", "unread_files", "user_layers",
           "values_of"]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """One file of the search path."""

    name: str  # experiment/quickstart
    provider: str
    path: Path


class SweepRefused(ConfigError):
    """Hydra could not set up a sweep: no such launcher, wrong options of it."""


def register() -> Catalog:
    """Store the schema and one typed node for everything installed in Hydra's ConfigStore; register the search path."""
    catalog = make_catalog(load_plugins())
    store = ConfigStore.instance()
    if "schema.yaml" not in store.repo:
        store.store(name="schema", node=Config)
    offered = {
        (group.name, name): (f"{group.name}.{name}" if group.many else group.name, choice)
        for group in COMPONENTS
        for name, choice in catalog.components[group.name].items()
        if choice.unusable is None
    }
    for group_name, name in _stored.keys() - offered.keys():
        del store.repo[group_name][f"{name}.yaml"], _stored[group_name, name]
    for (group_name, name), (package, choice) in offered.items():
        if _stored.get((group_name, name)) != choice:
            store.store(group=group_name, name=name, node=choice.node(), package=package, provider=choice.plugin)
            _stored[group_name, name] = choice
    HydraPlugins.instance().register(RametSearchPath)
    return catalog


class RametSearchPath(SearchPathPlugin):
    """Adds the presets of plugins, `hydra_configs/` of the working directory, `--config-dir`, and the shipped recipes.

    The first that has a file is the one that is read: a user's file comes before the recipe of its name.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        blocked = blocked_plugins()
        for point in sorted(entry_points(group=PRESET_PACKAGES), key=lambda point: point.name):
            if point.name not in blocked:
                search_path.append(provider=point.name, path=f"pkg://{point.value}")
        folders = {OWN: Path.cwd() / LOCAL, CHOSEN_FOLDER: _config_dir.get(), SHIPPED: shipped_recipes()}
        seen = set[Path]()
        for provider, folder in folders.items():
            if folder is not None and folder.is_dir() and folder.resolve() not in seen:
                seen.add(folder.resolve())
                search_path.append(provider=provider, path=f"file://{folder.absolute()}")


def shipped_recipes() -> Path | None:
    """The wheel's copy of the repository's `hydra_configs/`; in an editable install that folder itself."""
    package = Path(__file__).resolve().parents[1]
    copy, source = package / LOCAL, package.parents[2] / LOCAL
    if copy.is_dir():
        return copy
    return source if package.parts[-3:] == ("core", "src", "ramet") and source.is_dir() else None


@contextmanager
def running(config_dir: Path | None) -> Iterator[None]:
    """Start Hydra for `files_of` and, after `register`, for `compose_tree`, `layers_of` and `names_of`.

    `config_dir` holds more presets and experiments.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(f"--config-dir: no directory {str(config_dir)!r} (working directory: {Path.cwd()})")
    token = _config_dir.set(config_dir)
    HydraPlugins.instance().register(RametSearchPath)
    try:
        with initialize_config_module("ramet.conf", version_base="1.3", job_name="ramet"):
            yield
    finally:
        _config_dir.reset(token)


def override(key: str, value: object) -> str:
    """Return `key=value` in Hydra's grammar for a value of Python. Raises `ConfigError` for a value of another type."""
    return f"{key}={_written(key, value)}"


def _written(key: str, value: object) -> str:
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        return QuotedString(str(value), Quote.single).with_quotes()
    if isinstance(value, list | tuple):
        return f"[{','.join(_written(key, item) for item in value)}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_written(key, item)}" for name, item in value.items()) + "}"
    allowed = "text, number, bool, None, path, list or dict of these"
    raise ConfigError(f"{key}: a value of type {type(value).__name__} cannot be written down; allowed: {allowed}")


@functools.cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


def parse(text: str) -> Override:
    """One override as Hydra reads it. Raises `ConfigError` with its complaint."""
    try:
        return _parser().parse_override(text)
    except HydraException as error:
        raise ConfigError(first_line(error)) from error


def values_of(override: Override) -> list[str]:
    """The values that a sweep runs through, as they are typed. Raises `ConfigError` if they cannot be listed."""
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    if not override.is_discrete_sweep():
        raise ConfigError(f"{override.input_line} has no end of values")
    try:
        return list(override.sweep_string_iterator())
    except HydraException as error:
        raise ConfigError(first_line(error)) from error


def names_of(group: str) -> list[str]:
    """Everything that `group=…` accepts, presets included."""
    sources = GlobalHydra.instance().config_loader().get_sources()  # its `get_group_options` copies them for each call
    return sorted(
        {name for source in sources if source.is_group(group) for name in source.list(group, ObjectType.CONFIG)}
    )


def group_options(groups: Sequence[str], *, config_dir: Path | None = None) -> dict[str, list[str]]:
    """`names_of` these groups."""
    register()
    with running(config_dir):
        return {group: names_of(group) for group in groups}


def files_of(group: str) -> dict[str, list[ConfigFile]]:
    """Name -> the files `GROUP/NAME.yaml` of the search path, the one that is read first. Hydra must be running."""
    by_name: dict[str, list[ConfigFile]] = {}
    for file in _files():
        owner, _, name = file.name.rpartition("/")
        if owner == group:
            by_name.setdefault(name, []).append(file)
    return by_name


def unread_files() -> list[str]:
    """Say what is wrong with the user's files that hide one another, or that a preset hides. Hydra must be running."""
    by_name: dict[str, list[ConfigFile]] = {}
    for file in _files():
        by_name.setdefault(file.name, []).append(file)
    return [
        *_misnamed_files(),
        *(
            f"{hidden.path}: is never read, since {first.path} ({first.provider}) is {name}.yaml too; rename it"
            for name, (first, *others) in by_name.items()
            for hidden in others
            if hidden.provider in (OWN, CHOSEN_FOLDER)
        ),
    ]


def _misnamed_files() -> Iterator[str]:
    """Hydra reads only files that end in .yaml."""
    for source in GlobalHydra.instance().config_loader().get_sources():
        if source.provider in (OWN, CHOSEN_FOLDER):
            for path in sorted(Path(source.path).rglob("*.yml")):
                yield f"{path}: is never read, since its name must end in .yaml; rename it"


def _files() -> Iterator[ConfigFile]:
    """All YAML files of the search path, in its order."""
    for source in GlobalHydra.instance().config_loader().get_sources():
        for folder in _folders(source):
            for path in sorted(folder.rglob("*.yaml")):
                name = path.relative_to(folder).with_suffix("").as_posix()
                yield ConfigFile(name=name, provider=str(source.provider), path=path)


def _folders(source: ConfigSource) -> Sequence[Path]:
    if source.scheme() == "file":
        return [Path(source.path)]
    if source.scheme() != "pkg" or source.provider == "hydra":
        return []
    return package_folders(source.path)


def compose_tree(choices: Sequence[str], catalog: Catalog) -> DictConfig:
    """The typed tree with these choices (`algorithm=arpo`). Raises `ConfigError`.

    A recipe's options belong to the component that it chooses. Where one of them is not an option of the component
    that the user chose instead (`engine=torch`), none is taken.
    """
    try:
        return hydra_compose("config", overrides=list(choices))
    except (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError) as error:
        if (instead := _chosen_instead(error, choices)) is None:
            raise ConfigError(_explain(error, catalog, choices)) from error
    group = instead.partition("=")[0]
    tree = compose_tree([text for text in choices if text != instead], catalog)
    chosen = compose_tree([instead], catalog)[group]
    tree[group].name, tree[group].params = chosen.name, chosen.params
    return tree


def _chosen_instead(error: Exception, choices: Sequence[str]) -> str | None:
    """Return the choice of a component without the option that, as the error says, a file sets."""
    key = re.search(r"^Key '.*full_key: (\w+)\.params\.", str(error), re.DOTALL | re.MULTILINE)
    return next((text for text in choices if key and text.partition("=")[0] == key[1]), None)


def _explain(error: Exception, catalog: Catalog, choices: Sequence[str]) -> str:
    """Hydra's message about a preset, in one line, with a suggestion."""
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        asking = ", ".join(text for text in choices if text.partition("=")[0] in PRESETS)  # Hydra does not say which
        return catalog.unknown_choice(group, name, list(error.options or [])) + (
            f" (asked for by {asking}{_lacking(choices)})" if asking else ""
        )
    if isinstance(error, UnicodeDecodeError):
        return f"a file of {' '.join(choices)} is not UTF-8: {error.reason} {error.object[error.start : error.end]!r}"
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    key = re.search(r"full_key: ([^\s;]+)", text)
    schema = ConfigStore.instance().load("schema.yaml").node
    if key is None:
        return text
    if key[1] in GONE:
        return GONE[key[1]].problem(key[1])
    if of_component := re.match(r"(\w+)\.params\.", key[1]):
        group = of_component[1]
        text += (
            f"; where a recipe that yours begins with sets it for another {group}, leave `override /{group}` out of "
            f"your file, and type {group}=NAME: options of another one are left out then"
        )
    if key[1] not in (all_keys := list(leaf_keys(schema))):
        return text + suggest(key[1], all_keys)
    expected = expected_type(schema, key[1])
    written = f", written as {key[1].rpartition('.')[2]}: [A, B]" if (expected or "").startswith("list") else ""
    return text + (f"; {key[1]} expects {expected}{written}" if expected else "")


def _lacking(choices: Sequence[str]) -> str:
    """Name what the chosen recipe needs and is not installed."""
    recipes = files_of("experiment")
    names = [text.partition("=")[2] for text in choices if text.partition("=")[0] == "experiment"]
    texts = [recipes[name][0].path.read_text(encoding="utf-8") for name in names if name in recipes]
    lacking = missing(need for text in texts for need in needs_of(text))
    return f", which needs {' '.join(lacking)}: not installed" if lacking else ""


def layers_of(choices: Sequence[str]) -> tuple[list[Layer], dict[str, str]]:
    """Return the layers of these choices in order, and group -> name of the layer that overrode it."""
    loader = GlobalHydra.instance().config_loader()
    defaults = loader.compute_defaults_list("config", list(choices), RunMode.RUN)
    sources = loader.get_sources()
    layers = [_layer(sources, entry.config_path, entry.package) for entry in defaults.defaults if entry.config_path]
    chosen_by = {
        group: COMMAND_LINE if meta.external_override else str(meta.containing_config_path)
        for group, meta in defaults.overrides.override_metadata.items()
    }
    return layers, chosen_by


def user_layers(choices: Sequence[str]) -> list[Layer]:
    """Return the layers of `layers_of` that are files of the user's folders, which Ramet's own recipes are not."""
    shipped = shipped_recipes()
    of_user = [layer for layer in layers_of(choices)[0] if layer.provider in (OWN, CHOSEN_FOLDER)]
    return [layer for layer in of_user if shipped is None or not layer.file.resolve().is_relative_to(shipped.resolve())]


def _layer(sources: Sequence[ConfigSource], config_path: str, package: str | None) -> Layer:
    """The first source that has it is the one that it was composed from."""
    loaded = next(source for source in sources if source.is_config(config_path)).load_config(config_path)
    assert isinstance(loaded.config, DictConfig)
    return Layer(
        name=config_path,
        package="" if package in (None, "_global_") else str(package),
        provider=str(loaded.provider),
        path=str(loaded.path),
        config=loaded.config,
    )


def sweep(overrides: Sequence[str], point: Callable[[int, list[str]], None], *, config_dir: Path | None = None) -> None:
    """Call `point(number, overrides)` for every point, through Hydra's sweeper and launcher.

    Launchers may call it in other processes, so it is pickled. What it raises ends that point only; when all are
    through, the first such error is raised here. Raises `SweepRefused` if Hydra could not begin.
    """
    register()

    def task(tree: DictConfig) -> None:
        hydra_config = HydraConfig.get()
        with _without_hydra():
            point(int(hydra_config.job.num), list(hydra_config.overrides.task))

    token, argv, full = _config_dir.set(config_dir), sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = ["ramet", "--multirun", *overrides], "1"  # raise, do not print and exit
    try:
        hydra_main(version_base="1.3", config_path="pkg://ramet.conf", config_name="config")(task)()
    except (HydraException, OmegaConfBaseException) as error:
        text = str(error).partition("Config search path")[0]
        raise SweepRefused(f"sweep: {' '.join(text.split())}") from error
    finally:
        sys.argv = argv
        os.environ.pop("HYDRA_FULL_ERROR")
        if full is not None:
            os.environ["HYDRA_FULL_ERROR"] = full
        _config_dir.reset(token)


@contextmanager
def _without_hydra() -> Iterator[None]:
    """Suspend Hydra within a point of a sweep: `compose` starts Hydra itself, which allows one at a time."""
    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().clear()
        GlobalHydra.instance().hydra = running
