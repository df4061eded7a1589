"""The configuration of a finished run, composed again from its own overrides and further ones.

A run may have come from others. What its overrides make a component run, and what they read from the environment, is
refused until the user trusts them (`--trust-recipe RUN/overrides.txt`). A model's own code needs the user's own key.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ramet.config.compose import compose
from ramet.config.resolved import Resolved
from ramet.config.secrets import HIDDEN
from ramet.config.trust import code_options, untrusted_file
from ramet.errors import ConfigError, raise_all
from ramet.runs.hub_inputs import fetched
from ramet.runs.manifest import MANIFEST, read_manifest, read_run

OVERRIDES = "overrides.txt"
LEFT_OUT = ("run.name", "model.trust_remote_code")  # another directory; a decision of the user


def recorded_overrides(folder: Path) -> list[str]:
    """Return the overrides of the run, without hidden secrets. Raises `ConfigError` if the file is missing."""
    file = folder / OVERRIDES
    if not file.is_file():
        raise ConfigError(f"{file} is missing; it says how the run was configured")
    return [line for line in file.read_text(encoding="utf-8").splitlines() if HIDDEN not in line]


def recomposed(
    folder: Path, overrides: Sequence[str] = (), *, data: bool = True, config_dir: Path | None = None
) -> Resolved:
    """Return the configuration of the run in `folder` with `overrides` in addition, for the job that the run was.

    `data`: data sets of the hub are needed too.
    Raises `ConfigError` for no run, and `ConfigErrors` for keys that do not fit or that are not trusted.
    """
    job = read_run(folder).job
    kept = [text for text in recorded_overrides(folder) if _key(text) not in LEFT_OUT]
    resolved = compose([*kept, *overrides], job=job, config_dir=config_dir)
    typed = set(map(_key, overrides))
    code = {key: text for key, text in code_options(resolved.components).items() if key not in typed}
    code |= {_key(text): text for text in kept if "${" in text and _key(text) not in typed}
    raise_all(untrusted_file(folder / OVERRIDES, code))
    return fetched(resolved, data=data, commits=read_manifest(folder / MANIFEST).hub)


def _key(text: str) -> str:
    return text.partition("=")[0].lstrip("+~")
