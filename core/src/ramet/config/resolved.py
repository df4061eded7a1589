"""The result of composing: dataclasses for the job, and the record of how they came about, as YAML.

Values from the environment are never written: `${oc.env:KEY}` stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ramet.config.keys import JOBS
from ramet.config.schema import Config
from ramet.config.sections import COMPONENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The configuration of one job.

    `config` holds instances of the plugins' dataclasses in every `params` (None where a plugin takes no options).
    Sections that the job does not build hold the schema's defaults there, and are left out of `text`.
    """

    job: str
    config: Config
    text: str  # resolved YAML; what comes from the environment stays as `${oc.env:NAME}`
    overrides: list[str]  # as the user typed them
    set_by_user: frozenset[str]  # dotted keys and groups among them
    config_dir: Path | None = None  # more presets and experiments
    trusted: tuple[Path, ...] = ()  # files of the user's folders that may have programs run
    hub: Mapping[str, str] = field(default_factory=dict)  # commit of each name of the hub, once it was fetched
    given: Mapping[str, Any] = field(default_factory=dict)  # objects that `ramet.api.compose` was given, by key

    @property
    def components(self) -> dict[str, Any]:
        """The section of every component that the job builds, by `GROUP` or `GROUP.NAME`."""
        sections: dict[str, Any] = {}
        for group in COMPONENTS:
            if group.name in JOBS[self.job]:
                section = getattr(self.config, group.name)
                sections |= (
                    {f"{group.name}.{name}": settings for name, settings in section.items()}
                    if group.many
                    else {group.name: section}
                )
        return sections


def render(config: DictConfig, sections: Sequence[str]) -> str:
    """YAML of these sections, interpolations resolved except those that lead to an environment variable."""
    part = OmegaConf.masked_copy(config, list(sections))
    raw: Any = OmegaConf.to_container(part, resolve=False)
    resolved = _resolved(config, raw)
    secrets = {value for text, value in _pairs(raw, resolved) if "oc.env" in text and isinstance(value, str)}
    return OmegaConf.to_yaml(OmegaConf.create(_public(raw, resolved, secrets - {""})))


def _resolved(config: DictConfig, whole: Any) -> Any:
    values: Any = {}
    for section in whole:
        node = config[section]
        values[section] = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    return values


def _pairs(raw: Any, resolved: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(raw, dict) and isinstance(resolved, dict):
        for key in raw:
            yield from _pairs(raw[key], resolved[key])
    elif isinstance(raw, list) and isinstance(resolved, list):
        for raw_item, item in zip(raw, resolved, strict=True):
            yield from _pairs(raw_item, item)
    elif isinstance(raw, str) and "${" in raw:
        yield raw, resolved


def _public(raw: Any, resolved: Any, secrets: set[str]) -> Any:
    """`resolved`, except where an interpolation would write a secret."""
    if isinstance(raw, dict) and isinstance(resolved, dict):
        return {key: _public(raw[key], resolved[key], secrets) for key in raw}
    if isinstance(raw, list) and isinstance(resolved, list):
        return [_public(raw_item, item, secrets) for raw_item, item in zip(raw, resolved, strict=True)]
    if isinstance(raw, str) and "${" in raw:
        hidden = "oc.env" in raw or any(secret in str(resolved) for secret in secrets)
        return raw if hidden else plain(resolved)
    return plain(raw)


def plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value
