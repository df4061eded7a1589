"""`ramet config`: the configuration that a job would get, or how one of its values came about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ramet.config.compose import compose, layers


def show(job: str, overrides: Sequence[str], config_dir: Path | None) -> str:
    """The resolved configuration. Raises `ConfigErrors`."""
    return compose(overrides, job=job, config_dir=config_dir).text.rstrip("\n")


def why(key: str, job: str, overrides: Sequence[str], config_dir: Path | None) -> str:
    """Every place that set a key, the one that holds last. Raises `ConfigErrors`."""
    origins = layers(overrides, job=job, config_dir=config_dir).origins(key)
    widths = [max(len(getattr(origin, part)) for origin in origins) for part in ("kind", "value")]
    lines = [f"  {one.kind:{widths[0]}}  {one.value:{widths[1]}}  {one.where}" for one in origins]
    return "\n".join([f"{key} = {origins[-1].value}", *lines])
