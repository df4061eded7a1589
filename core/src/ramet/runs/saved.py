"""What a run directory says about its own run, for whoever comes later: the model and how it was sampled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ramet.config.choices import accept_enum_values
from ramet.config.schema import ModelConfig
from ramet.errors import ConfigError
from ramet.runs.manifest import read_manifest

BROKEN_CONFIG = (OSError, ValueError, TypeError, AttributeError, RecursionError, yaml.YAMLError, OmegaConfBaseException)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    job: str  # train, sft or eval
    model: ModelConfig
    temperature: float  # of the rollouts


def read_config(file: Path) -> DictConfig:
    """A run's `config.yaml`. Raises `BROKEN_CONFIG`."""
    text = file.read_text(encoding="utf-8")
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
        raise ValueError("holds YAML aliases, few of which may stand for millions of values; Ramet writes none")
    found = OmegaConf.create(text)
    if not isinstance(found, DictConfig):
        raise ValueError("holds no sections")
    return found


def read_run(run: Path) -> SavedRun:
    """Read `manifest.json` and `config.yaml`. Raises `ConfigError` if this is no run directory, or they are broken.

    `model.trust_remote_code` is false whatever it says: runs are given away, and whether a model's own code may
    run is said on the command line of whoever runs it.
    """
    file = run / "config.yaml"
    if missing := [name for name in (file.name, "manifest.json") if not (run / name).is_file()]:
        raise ConfigError(f"{run} is no run directory: it has no {' and no '.join(missing)}")
    accept_enum_values()
    try:
        config = read_config(file)
        section = OmegaConf.select(config, "model", throw_on_missing=True)
        model: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ModelConfig), section))
        temperature = float(OmegaConf.select(config, "rollout.temperature", default=1.0))
        model.trust_remote_code = False
    except BROKEN_CONFIG as error:
        raise ConfigError(f"{file}: not the configuration of a run: {error}") from error
    return SavedRun(job=read_manifest(run / "manifest.json").job, model=model, temperature=temperature)
