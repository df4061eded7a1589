"""Names of the hub in a configuration: local copies in their place, and the commits that a run records."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ramet.config.checks import RUN_NAME, check
from ramet.config.resolved import Resolved
from ramet.config.schema import Config, ModelConfig
from ramet.data.benchmarks import is_benchmark
from ramet.data.dataset_info import find_sets, hub_entry, pinned
from ramet.data.files import find_files
from ramet.errors import ConfigError, MissingHere, raise_all
from ramet.hub import (
    HubCopy,
    HubName,
    cached_folder,
    cached_name,
    data_name,
    fetch_data,
    fetch_model,
    model_name,
    whole_copy,
)
from ramet.runs.manifest import MANIFEST, read_manifest

logger = logging.getLogger(__name__)
COMMIT = re.compile(r"@[0-9a-f]{40}$")
TEACHER = "train.teacher"
MODELS, DATA = ("model.path", "model.tokenizer", TEACHER), ("data.train", "data.valid", "sft.data", "sft.valid")
READ_DATA = ("train", "sft", "data")  # jobs; a recipe may name data that others do not read


def fetched(
    resolved: Resolved, *, weights: bool = True, data: bool = True, commits: Mapping[str, str] | None = None
) -> Resolved:
    """Return the configuration with the local copies of all that it names of the hub. Fetches missing ones.

    Its text has the commits, so that later jobs on the run mean the same files; values from the environment
    (`${oc.env:NAME}`) stay unresolved. `commits`: the earlier commits of names (`Manifest.hub`); None: from the run
    that would be resumed. `weights`: also fetch the weights of models, unless a server has them. `data`: data
    sets too. Raises `ConfigErrors` with every problem found; mistakes in other keys before anything is fetched.
    """
    problems: list[str] = []
    named = _named(resolved, data, problems)
    if named and resolved.job in ("train", "sft", "eval"):
        problems += [text for text in check(resolved, resolved.job) if not isinstance(text, MissingHere)]
        problems += missing_files(resolved.config, resolved.job, of_hub={value.text for value in named})
    raise_all(problems)
    if not named:
        return resolved
    commits = _recorded(resolved) if commits is None else commits
    weights = weights and (resolved.job not in ("eval", "play") or resolved.config.engine.name != "openai")
    tree: Any = OmegaConf.to_container(OmegaConf.create(resolved.text), resolve=False)
    config, found = resolved.config, dict[str, str]()
    for value in sorted(named, key=lambda value: value.key in MODELS):  # data first: it is small
        typed = value.read(tree) == value.text
        recorded = value.text if typed else value.place
        try:
            copy = value.fetch({**found, **commits}.get(recorded), weights)  # one name is one commit
        except ConfigError as error:
            problems.append(f"{value.key}: {error}")
            continue
        found[recorded] = copy.commit
        config = value.put(config, pinned(value.text, copy.commit) if value.listed else str(copy.path))
        if typed:
            value.write(tree, pinned(value.text, copy.commit) if value.listed else copy.name.uri)
    raise_all(problems)
    return replace(resolved, config=config, text=OmegaConf.to_yaml(OmegaConf.create(tree)), hub=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedValue:
    """A value of a configuration that names something of the hub."""

    key: str
    index: int | None  # in the key's list
    text: str
    name: HubName
    listed: bool = False  # by a `dataset_info.json`

    @property
    def place(self) -> str:
        """The place in the configuration, such as data.train.0."""
        return self.key if self.index is None else f"{self.key}.{self.index}"

    def fetch(self, commit: str | None, weights: bool) -> HubCopy:
        """Fetch it at the commit that it had before, if it had one: a branch may have moved."""
        name = self.name
        if commit is not None and commit != name.revision:
            logger.info("%s: %s is taken at commit %s, as the run has it", self.key, name, commit[:12])
            name = replace(name, revision=commit)
        return fetch_model(name, weights=weights and self.key != MODELS[1]) if self.key in MODELS else fetch_data(name)

    def read(self, tree: Any) -> Any:
        section, option = self.key.split(".")
        value = tree.get(section, {}).get(option)
        return value[self.index] if isinstance(value, list) and self.index is not None else value

    def write(self, tree: Any, text: str) -> None:
        section, option = self.key.split(".")
        if self.index is None:
            tree[section][option] = text
        else:
            tree[section][option][self.index] = text

    def put(self, config: Config, path: str) -> Config:
        section, option = self.key.split(".")
        old: Any = getattr(config, section)
        value: Any = path
        if self.index is not None:
            value = [*getattr(old, option)]
            value[self.index] = path
        changed: dict[str, Any] = {section: replace(old, **{option: value})}
        return replace(config, **changed)


def _named(resolved: Resolved, data: bool, problems: list[str]) -> list[_NamedValue]:
    named: list[_NamedValue] = []
    models = MODELS if resolved.job == "train" else MODELS[:2]
    for key in (*models, *(DATA if data and resolved.job in READ_DATA else ())):
        section, option = key.split(".")
        value = getattr(getattr(resolved.config, section), option)
        for index, text in enumerate(value) if isinstance(value, list) else [(None, value or "")]:
            try:
                name = model_name(text) if key in MODELS else data_name(text)
            except ConfigError as error:
                problems.append(f"{key}: {error}")
                continue
            entry = hub_entry(text) if name is None and section == "sft" else None
            if (meant := name or entry) is not None:
                listed = entry is not None
                named.append(_NamedValue(key=key, index=index, text=text, name=meant, listed=listed))
    return named


def missing_files(config: Config, job: str, of_hub: Set[str] = frozenset()) -> list[str]:
    """Return problems of names of data without a readable file; those `of_hub` are left out."""
    data, sft = config.data, config.sft
    if job == "sft":
        named = {"sft.data": sft.data, "sft.valid": sft.valid}
        found = {
            key: find_sets([text for text in sets if text not in of_hub], fetch=False) for key, sets in named.items()
        }
        return [f"{key}: {problem}" for key, sets in found.items() for problem in sets.problems]
    sources = [*data.train, *data.valid] if job == "train" else []
    return find_files([source for source in sources if source not in of_hub and not is_benchmark(source)])[1]


def _recorded(resolved: Resolved) -> Mapping[str, str]:
    """Return the commits of the run that is continued, if there is one; its problems are found later."""
    run = resolved.config.run
    if run.name is None or not RUN_NAME.fullmatch(run.name):
        return {}
    try:
        manifest = read_manifest(Path(run.root) / run.name / MANIFEST)
    except (ConfigError, OSError):
        return {}
    return manifest.hub if manifest.job == resolved.job else {}


def local_model(path: str, key: str, *, pinned: bool = False, weights: bool = True) -> str:
    """Return the folder that `path` names, here or on the hub. Raises `ConfigError`.

    `pinned`: a run's configuration has it, where a name of the hub has its commit, and other texts are paths.
    """
    try:
        name = recorded_name(path) if pinned else model_name(path)
        return path if name is None else str(fetch_model(name, weights=weights).path)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error


def recorded_name(text: str) -> HubName | None:
    """Return the model of the hub that a run's configuration names, with its commit; None: it names a path."""
    return model_name(text) if COMMIT.search(text) is not None else None


def recorded_folder(text: str) -> Path:
    """Return the folder that a run's configuration names, or has from the hub in the cache. No network is asked."""
    name = recorded_name(text)
    return Path(text) if name is None else cached_folder(name) or Path(text)


def on_this_node(model: ModelConfig, *, weights: bool = True) -> ModelConfig:
    """Return the configuration with this node's copies of what another node has in its cache."""
    tokenizer = None if model.tokenizer is None else whole_copy(model.tokenizer, weights=False)
    return replace(model, path=whole_copy(model.path, weights=weights), tokenizer=tokenizer)


def shown_model(resolved: Resolved) -> str:
    """Return the model's path, or its name on the hub with the commit, which is the same on every machine."""
    path = resolved.config.model.path
    name = cached_name(path)
    return str(name) if name is not None and name.revision in resolved.hub.values() else path


def local_data(texts: Sequence[str]) -> list[str]:
    """Return paths and patterns; names of the hub as their local copies. Raises `ConfigError`."""
    names = [data_name(text) for text in texts]
    return [text if name is None else str(fetch_data(name).path) for text, name in zip(texts, names, strict=True)]
