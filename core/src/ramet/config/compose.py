"""Composing a job's configuration: the one module that knows Hydra.

Hydra turns choices (`branch_policy=arpo`, `algorithm=arpo`, `experiment=…`) into one typed tree; values
(`train.steps=3`) are then applied one by one, so that one run of the command reports every mistake. `compose` is what
the command line calls; `sweep` runs many through `hydra.main`, and each of its points composes like a single run.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from itertools import product
from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra import main as hydra_main
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins as HydraPlugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.config_source import ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ramet.config.catalog import Catalog, first_line, make_catalog, recorded_offers, suggest
from ramet.config.choices import accept_enum_values
from ramet.config.convert import add_instances, to_config, type_options
from ramet.config.provenance import Layer, Layers
from ramet.config.render import render
from ramet.config.resolved import Resolved
from ramet.config.schema import Config, RolloutConfig, RunConfig
from ramet.config.secrets import remember_environment
from ramet.config.sections import COMPONENTS, GROUPS, JOBS, PRESETS, unused_key
from ramet.config.settings import Setting, apply_settings, leaf_keys
from ramet.errors import ConfigError, ConfigErrors, raise_all
from ramet.plugins import PRESETS as PRESET_PACKAGES
from ramet.plugins import blocked_plugins, load_plugins

LOCAL = "hydra_configs"  # recipes of the working directory
SWEEP_KEYS = ("hydra/launcher", "hydra/sweeper", "hydra.launcher", "hydra.sweeper", "hydra.sweep")
SWEEP_VALUES = "allowed: a=1,2 choice(…) range(…) glob(…)"
INSTANCE = re.compile(rf"({'|'.join(group.name for group in COMPONENTS if group.many)})\.[^.]+\.use")
_config_dir: ContextVar[Path | None] = ContextVar("config_dir", default=None)
accept_enum_values()  # here, since a launcher's fresh process composes before it calls anything of ours

__all__ = ["Resolved", "SweepRefused", "compose", "group_options", "layers", "register", "resolve", "sweep",
           "sweep_points"]  # fmt: skip


class SweepRefused(ConfigError):
    """Hydra could not set up a sweep: no such launcher, wrong options of it."""


@dataclass(slots=True)
class _Request:
    """What the user typed, sorted. A repeated key counts once, the last one wins."""

    choices: dict[str, Override] = field(default_factory=dict)  # group -> override
    typed: dict[str, str] = field(default_factory=dict)  # group -> override as it was typed
    settings: dict[str, Setting] = field(default_factory=dict)  # key -> value
    problems: list[str] = field(default_factory=list)


def compose(overrides: Sequence[str], *, job: str, config_dir: Path | None = None) -> Resolved:
    """Compose, check and convert the configuration of `job`. Raises `ConfigErrors` with every problem found."""
    remember_environment(overrides)
    catalog = register()
    request = _read(overrides, job)
    catalog.recorded = _recorded(request)
    with _hydra(config_dir):
        tree = _tree(request, catalog)
    try:
        resolved = resolve(tree, overrides, job=job, catalog=catalog)
    except ConfigErrors as error:
        raise ConfigErrors(dict.fromkeys([*request.problems, *error.problems])) from error
    raise_all(request.problems)
    return replace(resolved, config_dir=config_dir)


def _recorded(request: _Request) -> dict[tuple[str, str], str]:
    """What the run that is to be resumed was offered, if the user names one."""
    name, root = request.settings.get("run.name"), request.settings.get("run.root")
    if name is None:
        return {}
    return recorded_offers(Path(RunConfig().root if root is None else root.text) / name.text / "manifest.json")


def layers(overrides: Sequence[str], *, job: str, config_dir: Path | None = None) -> Layers:
    """What a configuration is made of, in the order in which it was put together. Raises `ConfigErrors`."""
    catalog = register()
    request = _read(overrides, job)
    with _hydra(config_dir):
        tree = _tree(request, catalog)
        raise_all(request.problems)
        loader = GlobalHydra.instance().config_loader()
        found = loader.compute_defaults_list("config", list(request.typed.values()), RunMode.RUN)
        sources = loader.get_sources()
        made = [_layer(sources, one.config_path, one.package) for one in found.defaults if one.config_path]
    _, problems = type_options(tree, JOBS[job], catalog)
    raise_all(problems)
    chosen = {
        group: "command line" if meta.external_override else str(meta.containing_config_path)
        for group, meta in found.overrides.override_metadata.items()
    }
    return Layers(layers=made, chosen_by=chosen, overrides=list(overrides), tree=tree)


def _tree(request: _Request, catalog: Catalog) -> DictConfig:
    """The composed tree with the user's values. What is wrong with the request is added to its problems.

    Raises `ConfigErrors` if nothing can be composed.
    """
    wrong = _wrong_choices(request, catalog)
    request.problems += [problem for problems in wrong.values() for problem in problems]
    nothing = {g for g, one in request.choices.items() if one.value() == [] and not _options(g)}  # unknown to Hydra
    usable = [text for group, text in request.typed.items() if group not in wrong and group not in nothing]
    try:
        tree = hydra_compose("config", overrides=usable)
    except (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError) as error:
        raise ConfigErrors([*request.problems, _explain(error, catalog, usable)]) from error
    usable_settings = [s for s in request.settings.values() if s.section not in wrong]
    uses = {s.key.removesuffix(".use"): s for s in usable_settings if INSTANCE.fullmatch(s.key)}
    bad = add_instances(tree, catalog, {path: None if s.value is None else s.text for path, s in uses.items()})
    request.problems += bad
    unmade = tuple(f"{path}." for path in uses if bad and OmegaConf.select(tree, path) is None)
    rest = [s for s in usable_settings if not INSTANCE.fullmatch(s.key) and not s.key.startswith(unmade)]
    request.problems += apply_settings(tree, rest)
    return tree


def _layer(sources: Sequence[ConfigSource], config_path: str, package: str | None) -> Layer:
    """The first source that has it is the one that it was composed from."""
    found = next(source for source in sources if source.is_config(config_path)).load_config(config_path)
    assert isinstance(found.config, DictConfig)
    return Layer(
        name=config_path,
        package="" if package in (None, "_global_") else str(package),
        provider=str(found.provider),
        path=str(found.path),
        config=found.config,
    )


def resolve(tree: DictConfig, overrides: Sequence[str], *, job: str, catalog: Catalog) -> Resolved:
    """Convert a composed tree. Raises `ConfigErrors`."""
    _fit_concurrency(tree)
    config = to_config(tree, JOBS[job], catalog)
    keys = frozenset(text.partition("=")[0].lstrip("+") for text in overrides)
    if config.model.trust_remote_code and "model.trust_remote_code" not in keys:
        raise ConfigErrors([
            "model.trust_remote_code: a file that is passed on may not let code run; read the model's code, and set "
            "model.trust_remote_code=true on the command line"
        ])  # fmt: skip
    text = render(tree, JOBS[job])
    return Resolved(job=job, config=config, text=text, overrides=list(overrides), set_by_user=keys)


def _fit_concurrency(tree: DictConfig) -> None:
    """A deterministic run keeps a slot for every rollout: the default number of rollouts follows the engine's slots."""
    default = RolloutConfig().max_concurrent
    slots = OmegaConf.select(tree, "engine.params.slots")
    if not tree.run.deterministic or slots is None or tree.rollout.max_concurrent != default:
        return
    if tree.rollout.group_size <= slots < default:
        tree.rollout.max_concurrent = slots


def sweep_points(overrides: Sequence[str]) -> list[list[str]] | None:
    """The overrides of every point of a sweep, in order; None if another sweeper than Hydra's own chooses them.

    Raises `ConfigErrors` for what cannot be read or set.
    """
    parser, swept, problems = OverridesParser.create(), list[Override](), list[str]()
    other = False
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            problems.append(f"cannot read {text!r}: {first_line(error)}; write key=value")
            continue
        key = override.key_or_group
        if not (key == "hydra" or key.startswith(("hydra.", "hydra/"))):
            swept.append(override)
        elif not key.startswith(SWEEP_KEYS):
            problems.append(f"{key}: of Hydra's own keys a sweep takes {', '.join(SWEEP_KEYS)}")
        else:
            other = other or key == "hydra/sweeper"
    raise_all(problems)
    if other:
        return None
    try:
        values = {override.get_key_element(): _values(override) for override in swept}  # the last of a key counts
    except HydraException as error:
        raise ConfigError(f"sweep: {first_line(error)}; {SWEEP_VALUES}") from error
    return [list(point) for point in product(*values.values())]


def _values(override: Override) -> list[str]:
    """Raises `ConfigError` for values without an end."""
    key = override.get_key_element()
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"]
    if not override.is_discrete_sweep():
        raise ConfigError(f"sweep: {override.input_line} has no end of values; {SWEEP_VALUES}")
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def sweep(overrides: Sequence[str], point: Callable[[int, list[str]], None], *, config_dir: Path | None = None) -> None:
    """Call `point(number, overrides)` for every point, through Hydra's sweeper and launcher.

    Launchers may call it in other processes, so it is pickled. What it raises ends that point only; when all are
    through, the first such error is raised here. Raises `SweepRefused` if Hydra could not begin.
    """
    register()

    def task(tree: DictConfig) -> None:
        chosen = HydraConfig.get()
        with _without_hydra():
            point(int(chosen.job.num), list(chosen.overrides.task))

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
    """Within a point of a sweep: `compose` starts Hydra itself, which allows one at a time."""
    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().clear()
        GlobalHydra.instance().hydra = running


def register() -> Catalog:
    """Store the schema and one typed node for everything installed in Hydra's ConfigStore; register the search path."""
    catalog = make_catalog(load_plugins())
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group in COMPONENTS:
        store.repo.pop(group.name, None)
        for name, component in catalog.components[group.name].items():
            if component.unusable is None:
                package = f"{group.name}.{name}" if group.many else group.name
                node, plugin = component.node(), component.plugin
                store.store(group=group.name, name=name, node=node, package=package, provider=plugin)
    HydraPlugins.instance().register(RametSearchPath)
    return catalog


def group_options(groups: Sequence[str], *, config_dir: Path | None = None) -> dict[str, list[str]]:
    """Group -> everything that `group=…` accepts, presets included."""
    register()
    with _hydra(config_dir):
        return {group: _options(group) for group in groups}


class RametSearchPath(SearchPathPlugin):
    """Adds the presets of plugins, `hydra_configs/` of the working directory, and `--config-dir`, in this order."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        blocked = blocked_plugins()
        for point in sorted(entry_points(group=PRESET_PACKAGES), key=lambda point: point.name):
            if point.name not in blocked:
                search_path.append(provider=point.name, path=f"pkg://{point.value}")
        local = Path.cwd() / LOCAL
        if local.is_dir():
            search_path.append(provider="working directory", path=f"file://{local}")
        extra = _config_dir.get()
        if extra is not None:
            search_path.append(provider="--config-dir", path=f"file://{extra.resolve()}")


@contextmanager
def _hydra(config_dir: Path | None) -> Iterator[None]:
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(f"--config-dir: no directory {str(config_dir)!r} (working directory: {Path.cwd()})")
    token = _config_dir.set(config_dir)
    try:
        with initialize_config_module("ramet.conf", version_base="1.3", job_name="ramet"):
            yield
    finally:
        _config_dir.reset(token)


def _read(overrides: Sequence[str], job: str) -> _Request:
    request, parser = _Request(), OverridesParser.create()
    for text in overrides:
        if any("\ud800" <= char <= "\udfff" for char in text):  # bytes that Python could not read
            shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            request.problems.append(f"cannot read {shown!r}: not UTF-8 here; set a UTF-8 locale, as in LC_ALL=C.UTF-8")
            continue
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            request.problems.append(f"cannot read {text!r}: {first_line(error)}; {_spelling(text)}")
            continue
        problem = _refused(override, text) or unused_key(override.key_or_group, job)
        if problem:
            request.problems.append(problem)
        elif override.key_or_group in GROUPS:
            request.choices[override.key_or_group] = override
            request.typed[override.key_or_group] = text.lstrip("+")
        else:
            key = override.key_or_group
            request.settings[key] = Setting(key=key, value=override.value(), text=text.partition("=")[2])
    return request


def _spelling(text: str) -> str:
    """How to write an override that cannot be read. Hydra takes only ASCII letters and some signs outside quotes."""
    key, given, value = text.partition("=")
    if not given:
        return "write key=value"
    quoted = "['VALUE']" if value.startswith("[") else "'VALUE'"
    return f'put the value in quotes, and all of it for the shell: "{key}={quoted}"'


def _refused(override: Override, text: str) -> str | None:
    key = override.key_or_group
    if key.partition(".")[0].partition("/")[0] == "hydra":
        return f"{key}: Hydra's own keys cannot be set here (directories with presets: --config-dir)"
    if override.is_delete():
        return f"{text}: deleting is not possible; choose something else, as in tools=[]"
    if override.package is not None:
        return f"{text}: '@package' is not possible here"
    if override.is_sweep_override():
        return f"{text}: several values for one key; a list is written {key}=[a,b], a sweep takes -m"
    return None


def _wrong_choices(request: _Request, catalog: Catalog) -> dict[str, list[str]]:
    """Group -> what is wrong with its choice."""
    wrong: dict[str, list[str]] = {}
    many = {group.name for group in COMPONENTS if group.many}
    for group, override in request.choices.items():
        value, options = override.value(), _options(group)
        names = value if isinstance(value, list) else [value]
        bad = [str(name) for name in names if str(name) not in options]
        if isinstance(value, list) and group not in many:
            wrong[group] = [f"{group}: takes one name, got {value}"]
        elif value is None or isinstance(value, dict):
            wrong[group] = [f"{group}: {override.get_value_string()} is no choice; allowed: {', '.join(options)}"]
        elif bad:
            wrong[group] = [_unknown(catalog, group, name, options) for name in bad]
    return wrong


def _unknown(catalog: Catalog, group: str, name: str, options: list[str]) -> str:
    component = catalog.components.get(group, {}).get(name)
    if component is not None and component.unusable:
        return f"{group}: {name!r} of plugin {component.plugin} cannot be used: {component.unusable}"
    if group in catalog.components:
        return catalog.unknown(group, name, options)
    found = ", ".join(options) or f"none (recipes stand in {LOCAL}/ of the working directory, or in --config-dir)"
    return f"{group}: no {name!r}.{suggest(name, options)} Available: {found}"


def _options(group: str) -> list[str]:
    return sorted(GlobalHydra.instance().config_loader().get_group_options(group))


def _explain(error: Exception, catalog: Catalog, chosen: list[str]) -> str:
    """Hydra's message about a preset, in one line, with a suggestion."""
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        asking = ", ".join(text for text in chosen if text.partition("=")[0] in PRESETS)  # Hydra does not say which
        return _unknown(catalog, group, name, list(error.options or [])) + (
            f" (asked for by {asking})" if asking else ""
        )
    if isinstance(error, UnicodeDecodeError):
        return f"a file of {' '.join(chosen)} is not UTF-8: {error.reason} {error.object[error.start : error.end]!r}"
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    key = re.search(r"full_key: (\S+)", text)
    schema = ConfigStore.instance().load("schema.yaml").node
    return text + (suggest(key[1], leaf_keys(schema)) if key else "")
