"""Composing a job's configuration.

Hydra turns choices (`branch_policy=arpo`, `algorithm=arpo`, `experiment=…`) into one typed tree; values
(`train.steps=3`) are then applied one by one, so that one run of the command reports every mistake.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from ramet.config.catalog import Catalog, recorded_offers
from ramet.config.checks import check_chosen, check_values
from ramet.config.convert import UNSET, add_instances, to_config, type_options
from ramet.config.hydra_adapter import (
    compose_tree,
    layers_of,
    names_of,
    parse,
    register,
    running,
    unread_files,
    user_layers,
)
from ramet.config.keys import JOBS
from ramet.config.provenance import Layers
from ramet.config.request import JobRequest, read, wrong_choices
from ramet.config.resolved import Resolved, render
from ramet.config.schema import RolloutConfig, RunConfig
from ramet.config.secrets import remember_environment
from ramet.config.sections import COMPONENTS, OWN_TRACKERS
from ramet.config.settings import apply_settings
from ramet.config.trust import code_options, trusted_recipes, untrusted
from ramet.errors import ConfigError, ConfigErrors, PluginError, raise_all
from ramet.plugins.extensions import TRACKERS, extension

WITHOUT_MODEL = ("data", "judge", "tool", "doctor")  # jobs that need none
INSTANCE = re.compile(rf"({'|'.join(group.name for group in COMPONENTS if group.many)})\.[^.]+\.use")


def compose(overrides: Sequence[str], *, job: str, config_dir: Path | None = None) -> Resolved:
    """Compose, check and convert the configuration of `job`. Raises `ConfigErrors` with every problem found."""
    remember_environment(overrides)
    catalog = register()
    request = read(overrides, job)
    catalog.recorded = _recorded(request)
    with running(config_dir):
        tree = _tree(request, catalog)
    try:
        resolved = resolve(tree, overrides, job=job, catalog=catalog)
        raise_all(request.problems)
    except ConfigErrors as error:  # with what jobs would find if all the rest were right
        all_problems = [*request.problems, *error.problems, *check_values(tree, job), *unknown_trackers(tree, job)]
        if any(text.startswith(f"model.path{UNSET}") for text in error.problems):  # so other needs may be unknown, too
            all_problems += check_chosen(tree, job, {*request.choices, *request.settings})
        raise ConfigErrors(dict.fromkeys(all_problems)) from error
    typed = {
        key for key, setting in request.settings.items() if not isinstance(setting.value, dict)
    }  # those are merged
    if code := {key: text for key, text in code_options(resolved.components).items() if key not in typed}:
        with running(config_dir):
            raise_all(untrusted(code, user_layers(list(request.typed.values()))))
    return replace(resolved, config_dir=config_dir, trusted=trusted_recipes())


def _recorded(request: JobRequest) -> dict[tuple[str, str], str]:
    """Return what the run that is to be resumed was offered, if the user names one."""
    name, root = request.settings.get("run.name"), request.settings.get("run.root")
    if name is None:
        return {}
    return recorded_offers(Path(RunConfig().root if root is None else root.text) / name.text / "manifest.json")


def unknown_trackers(tree: DictConfig, job: str) -> list[str]:
    """Names that no package offers, reported with other mistakes; without any, the job reports them with its own."""
    problems = []
    for number in range(len(tree.trackers)) if "trackers" in JOBS[job] else ():
        try:
            if (name := tree.trackers[number]) not in OWN_TRACKERS:
                extension(TRACKERS, name, OWN_TRACKERS)
        except OmegaConfBaseException:  # missing, or leads nowhere: a mistake of its own
            continue
        except (ConfigError, PluginError) as error:
            problems.append(f"trackers: {error}")
    return problems


def layers(overrides: Sequence[str], *, job: str, config_dir: Path | None = None) -> Layers:
    """Return the layers of a configuration, in the order in which it was put together. Raises `ConfigErrors`."""
    catalog = register()
    request = read(overrides, job)
    with running(config_dir):
        tree = _tree(request, catalog)
        raise_all(request.problems)
        composed_layers, chosen_by = layers_of(list(request.typed.values()))
    _, problems = type_options(tree, JOBS[job], catalog)
    raise_all(problems)
    return Layers(layers=composed_layers, chosen_by=chosen_by, overrides=list(overrides), tree=tree, job=job)


def _tree(request: JobRequest, catalog: Catalog) -> DictConfig:
    """The composed tree with the user's values. What is wrong with the request is added to its problems.

    Raises `ConfigErrors` if nothing can be composed.
    """
    request.problems += unread_files()
    aside = _leave_to_instances(request)
    wrong = wrong_choices(request, catalog)
    request.problems += [problem for problems in wrong.values() for problem in problems]
    nothing = {
        g for g, choice in request.choices.items() if choice.value() == [] and not names_of(g)
    }  # unknown to Hydra
    usable = [text for group, text in request.typed.items() if group not in wrong and group not in nothing]
    try:
        tree = compose_tree(usable, catalog)
    except ConfigError as error:
        raise ConfigErrors([*request.problems, str(error)]) from error
    for group, problems in _choose_written(tree, aside, catalog).items():
        wrong[group] = problems
        request.problems += problems
    usable_settings = [s for s in request.settings.values() if s.section not in wrong]
    uses = {s.key.removesuffix(".use"): s for s in usable_settings if INSTANCE.fullmatch(s.key)}
    bad = add_instances(tree, catalog, {path: None if s.value is None else s.text for path, s in uses.items()})
    request.problems += bad
    chosen = {group.name for group in COMPONENTS if group.many and group.name in request.choices.keys() - wrong.keys()}
    _leave_out_unchosen(tree, chosen, usable)
    unmade = tuple(f"{path}." for path in uses if bad and OmegaConf.select(tree, path) is None)
    rest = [s for s in usable_settings if not INSTANCE.fullmatch(s.key) and not s.key.startswith(unmade)]
    request.problems += apply_settings(tree, rest, request.job)
    if "experiment" in wrong:  # what it would have set is not missing
        raise ConfigErrors([*request.problems, *check_values(tree, request.job)])
    if request.job in WITHOUT_MODEL and OmegaConf.is_missing(tree.model, "path"):
        tree.model.path = ""  # a recipe may name one, and need not
    return tree


def _leave_to_instances(request: JobRequest) -> dict[str, tuple[list[str], list[str]]]:
    """Take the names that `GROUP.NAME.use` makes out of the choices: `tools=[time] tools.time.use=mcp`.

    Names that the request does not make are taken out too: a recipe may. Group -> these, and all that it chooses.
    """
    aside = {}
    for group in (group.name for group in COMPONENTS if group.many and group.name in request.choices):
        value, offered = request.choices[group].value(), names_of(group)
        if value is None or isinstance(value, dict):
            continue  # refused as a choice
        names = [str(name) for name in value] if isinstance(value, list) else [str(value)]
        instances = {key.split(".")[1] for key, setting in request.settings.items()
                if INSTANCE.fullmatch(key) and setting.section == group and setting.value is not None}  # fmt: skip
        rest = [name for name in names if name in offered]
        if unmade := [name for name in names if name not in offered and name not in instances]:
            aside[group] = unmade, [*names, *instances]
        if len(rest) < len(names):
            request.typed[group] = f"{group}=[{','.join(rest)}]"
            request.choices[group] = parse(request.typed[group])
    return aside


def _choose_written(
    tree: DictConfig, aside: Mapping[str, tuple[list[str], list[str]]], catalog: Catalog
) -> dict[str, list[str]]:
    """Leave out instances that files define and that the choice, which names such instances, does not name.

    Returns by group the problems of names that no file defines.
    """
    wrong = {}
    for group, (unmade, kept) in aside.items():
        written = [str(name) for name in tree[group] if tree[group][name].use is not None]
        if unknown := [name for name in unmade if name not in written]:
            wrong[group] = [catalog.unknown_choice(group, name, names_of(group)) for name in unknown]
            continue
        with open_dict(tree):
            for name in (name for name in written if name not in kept):
                del tree[group][name]
    return wrong


def _leave_out_unchosen(tree: DictConfig, groups: Set[str], usable: Sequence[str]) -> None:
    """Leave out what a recipe only sets options of where the user chose another list: with `tools=[]` there is none."""
    named = {(group, name) for group in groups for name in tree[group] if tree[group][name].use is None}
    if not named:
        return
    for layer in layers_of(usable)[0]:
        group, _, name = layer.package.partition(".")
        if layer.name.startswith(f"{group}/"):  # a choice, by the name of a plugin or of a user's file
            named -= {(group, name)} if name else {(group, str(each)) for each in layer.config}
    for group, name in named:
        with open_dict(tree):
            del tree[group][name]


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
