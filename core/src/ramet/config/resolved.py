"""What composing gives: dataclasses for the job, and the record of how they came about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ramet.config.schema import Config


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
