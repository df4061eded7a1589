"""Options that a finished run has recorded as YAML, typed again: for jobs that repeat a part of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from ramet.config.schema import RunConfig
from ramet.errors import ConfigError

_INTERPOLATION = re.compile(r"(\\*)\$\{")


def stored_entry(text: str, section: str, name: str) -> dict[str, Any]:
    """Return the entry `SECTION.NAME` of a configuration, interpolations of the environment as they are written."""
    recorded: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    try:
        return dict(recorded[section][name] or {})
    except (KeyError, TypeError) as error:
        raise ConfigError(f"the recorded configuration has no {section}.{name}") from error


def stored_names(text: str, section: str) -> set[str]:
    """The names in a section of the configuration `text`; none if it has no such section."""
    return {str(name) for name in OmegaConf.select(OmegaConf.create(text), section, default=None) or ()}


def stored_seed(text: str) -> int:
    """`run.seed` of the configuration `text`."""
    return int(OmegaConf.select(OmegaConf.create(text), "run.seed", default=RunConfig().seed))


def typed_options(
    options: type[Any], values: dict[str, Any] | None, key: str, overrides: Mapping[str, Any] | None = None
) -> Any:
    """An instance of the dataclass `options`. Raises `ConfigError` that begins with `key`.

    Interpolations stay texts: a file that was passed on may not read the environment. `overrides` are values of the
    command line, by option, instead of those that are recorded.
    """
    try:
        node = OmegaConf.merge(OmegaConf.structured(options), _literal(values or {}))
        for option, value in (overrides or {}).items():
            OmegaConf.update(node, option, value)
        return OmegaConf.to_object(node)
    except Exception as error:  # OmegaConf and the options' own checks raise many kinds
        raise ConfigError(f"{key}: the recorded options do not fit the installed plugin: {error}") from error


def _literal(value: Any) -> Any:
    """`value` with interpolations escaped, as OmegaConf reads it."""
    if isinstance(value, dict):
        return {key: _literal(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_literal(part) for part in value]
    return _INTERPOLATION.sub(r"\1\1\\${", value) if isinstance(value, str) else value
