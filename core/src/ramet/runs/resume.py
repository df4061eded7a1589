"""Whether a run may continue with the current configuration, data, model and plugins, or would become another run.

Changes that cannot alter the numbers pass. Others are refused with both values unless `run.allow_config_change`. Other
training data, or another order of it, is refused always: the next step would skip some tasks and repeat others, and
nothing would show it. A training that has saved nothing starts again, whatever changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ramet.config.gone import GONE, NOTHING_SAID, carried
from ramet.config.keys import resume_of
from ramet.config.sections import COMPONENTS
from ramet.errors import ConfigError
from ramet.runs.manifest import (
    BROKEN_CONFIG,
    MANIFEST,
    TEACHER,
    DataRecord,
    Manifest,
    PluginRecord,
    read_config,
    read_manifest,
)
from ramet.runs.own_files import has_saved
from ramet.types.option import Resume

logger = logging.getLogger(__name__)
ABSENT = "(absent)"
NEW_OF_REWARDS = {"resample": False, "max_unjudged": 0.05, "retries": 2}  # defaults of keys that came later


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Values that decide whether two processes work on the same run."""

    config: str  # YAML as in config.yaml
    manifest: Manifest
    saved: bool = True  # whether there is anything to continue from

    @classmethod
    def read(cls, run: Path) -> RunState:
        """The contents of a run directory. Raises `ConfigError` for a file that is missing or broken."""
        file = run / "config.yaml"
        try:
            read_config(file)
            config = file.read_text(encoding="utf-8")
        except BROKEN_CONFIG as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"{file}: cannot be read: {reason}") from error
        manifest = read_manifest(run / MANIFEST)
        return cls(config=config, manifest=manifest, saved=has_saved(run, manifest.job))


@dataclass(slots=True, kw_only=True)
class Changes:
    """Differences between two processes of one run, in words, by their effect on the numbers."""

    safe: list[str] = field(default_factory=list)  # nothing
    risky: list[str] = field(default_factory=list)  # alter them
    fatal: dict[str, str] = field(default_factory=dict)  # make them wrong; and why

    @property
    def harmful(self) -> list[str]:
        return [*self.fatal, *self.risky]


def check_resume(old: RunState, new: RunState, *, allow: bool = False) -> list[str]:
    """Return why `new` may not continue where `old` stopped. Allowed differences are logged."""
    if old.manifest.job != new.manifest.job:
        return [f"the run directory has a `ramet {old.manifest.job}` run, not `ramet {new.manifest.job}`"]
    differences = changes(old, new)
    refused = _refused(differences, allow=allow) if old.saved else []
    if refused:
        return refused
    for text in differences.safe:
        logger.info("resume with a change: %s", text)
    for text in differences.harmful:
        if old.saved:
            logger.warning("resume with a change that alters the numbers: %s", text)
        else:
            logger.info("nothing was saved, so the run starts again with a change: %s", text)
    return []


def _refused(differences: Changes, *, allow: bool) -> list[str]:
    fatal = [f"{text}; {why}" for text, why in differences.fatal.items()]
    if allow:
        return fatal
    return [*fatal, *(f"{text}; resuming would mix two runs: undo it, choose another run.name, or set "
                      "run.allow_config_change=true" for text in differences.risky)]  # fmt: skip


def changes(old: RunState, new: RunState) -> Changes:
    """Sort the differences between two states of the same job by their effect on a resume."""
    job, differences = old.manifest.job, Changes(fatal=_data_changes(old.manifest, new.manifest))
    for key, before, after in config_differences(old.config, new.config):
        if _means_the_same(key, before, after):
            continue
        text = GONE[key].change(key, before) if key in GONE else f"{key} was {before}, is {after}"
        if job == "train" and resume_of(key) is Resume.ORDER:
            differences.fatal[text] = (
                "it decides which tasks a step gets, so a resumed run would skip some and repeat others: undo it, or "
                "choose another run.name"
            )
        elif is_safe(job, key, before, after) and not _matters_here(key, old.config, new.config):
            differences.safe.append(text)
        else:
            differences.risky.append(text)
    differences.risky += _other_changes(old.manifest, new.manifest)
    if job == "sft" or _keep_best(old.config) == _keep_best(new.config) is not None:
        differences.risky += _valid_changes(old.manifest, new.manifest)
    differences.risky += _code_changes(old, new.manifest)
    return differences


def _means_the_same(key: str, before: Any, after: Any) -> bool:
    """Whether runs of earlier versions, which lack a key or wrote its default out, had the values that are in force
    now.
    """
    name = key.rpartition(".")[2]
    return bool(before == ABSENT and key.startswith("rewards.") and NEW_OF_REWARDS.get(name, ABSENT) == after)


def config_differences(old: str, new: str) -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, value before, value now) of everything that differs between two YAML texts."""
    before, after = _flat(old), _flat(new)
    for key in sorted({*before, *after}):
        if before.get(key, ABSENT) != after.get(key, ABSENT):
            yield key, _in_force(key, before), _in_force(key, after)


def _in_force(key: str, values: Mapping[str, Any]) -> Any:
    """Return the value of a key; without one what its absence means, where that is known."""
    return values.get(key, NOTHING_SAID.get(key, (ABSENT,))[-1])


def _flat(text: str) -> dict[str, Any]:
    return carried(dict(_leaves(OmegaConf.to_container(OmegaConf.create(text), resolve=False), "")))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def is_safe(job: str, key: str, before: Any, after: Any) -> bool:
    """Return whether this change of a key cannot alter what `job` trains or measures."""
    match resume_of(key):
        case Resume.SAFE | Resume.SCHEDULE | Resume.MEMORY | Resume.VALIDATION:
            return True
        case Resume.MEASURED:
            return job != "eval"
        case Resume.FAILURES:
            return job == "eval"
        case Resume.PATIENCE:
            return job == "eval" and _is_more(before, after)
    return False


def _matters_here(key: str, old: str, new: str) -> bool:
    """Return whether a key that is safe in other runs is not safe here, by other keys of the run."""
    match resume_of(key):
        case Resume.SCHEDULE:
            return _steps_set_the_rate(new)
        case Resume.MEMORY:
            return _flat(new).get("run.deterministic") is True
        case Resume.VALIDATION | Resume.MEASURED:  # `train.keep_best` compares their results
            return _keep_best(old) == _keep_best(new) is not None
    return False


def _keep_best(config: str) -> str | None:
    metric = _flat(config).get("train.keep_best")
    return None if metric is None else str(metric)


def _is_more(before: Any, after: Any) -> bool:
    return isinstance(before, int | float) and isinstance(after, int | float) and after >= before


def _steps_set_the_rate(config: str) -> bool:
    """The other schedules stretch over the run, so another length is another learning rate from here on."""
    return bool(_flat(config).get("policy.schedule", "constant") != "constant")


def _data_changes(old: Manifest, new: Manifest) -> dict[str, str]:
    before, after = old.data.get("train"), new.data.get("train")
    if before is None or after is None or before.fingerprint == after.fingerprint:
        return {}
    text = f"the training data changed: the run began with {_tasks(before)}, now there are {_tasks(after)}"
    return {text: "restore the data and what selects from it, or choose another run.name"}


def _valid_changes(old: Manifest, new: Manifest) -> Iterator[str]:
    before, after = old.data.get("valid"), new.data.get("valid")
    if before is not None and after is not None and before.fingerprint != after.fingerprint:
        yield f"the held-out data, by which checkpoints are compared, was {_tasks(before)}, is {_tasks(after)}"


def _tasks(data: DataRecord) -> str:
    long = f", {data.too_long} of them too long" if data.too_long else ""
    return f"{data.tasks} tasks of {', '.join(data.files)}{long} (sha256 {data.fingerprint[:12]})"


def _other_changes(old: Manifest, new: Manifest) -> Iterator[str]:
    if old.model and new.model and old.model != new.model:
        yield f"files of the model, tokenizer or chat template: sha256 was {old.model[:12]}, is {new.model[:12]}"
    for key in sorted(old.files.keys() & new.files.keys()):
        if old.files[key] != new.files[key]:
            what = "file" if ".params." in key or key == TEACHER else "code"
            yield f"the {what} of {key}: sha256 was {old.files[key][:12]}, is {new.files[key][:12]}"
    before = {plugin.name: plugin.release for plugin in old.plugins}
    after = {plugin.name: plugin.release for plugin in new.plugins}
    for name in sorted(before):
        if name in after and before[name] != after[name]:
            yield f"plugin {name} was {before[name]}, is {after[name]}"


def _code_changes(old: RunState, new: Manifest) -> Iterator[str]:
    """Plugins that the run uses, in the same version with other code. Others may be worked on while it runs."""
    after = {plugin.name: plugin for plugin in new.plugins}
    config = OmegaConf.create(old.config)
    for before in old.manifest.plugins:
        now = after.get(before.name)
        if now is None or before.version != now.version or not _uses(config, before):
            continue
        if before.code and now.code and before.code != now.code:
            who = f"code of plugin {before.name} ({before.release})"
            yield f"{who}: sha256 was {before.code[:12]}, is {now.code[:12]}"


def _uses(config: Any, plugin: PluginRecord) -> bool:
    """Whether the configuration names something that the plugin offers."""
    for group in COMPONENTS:
        node = OmegaConf.select(config, group.name) or {}
        if group.many:
            named = {str((node[name] or {}).get("use") or name) for name in node}
        else:
            named = {str(node.get("name"))}
        if named & set(plugin.offers.get(group.name, ())):
            return True
    return False
