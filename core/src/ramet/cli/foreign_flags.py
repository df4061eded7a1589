"""Options that a job does not have: mostly keys, with the dashes that other trainers' command lines have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ramet.config.aliases import meant, reason
from ramet.config.catalog import suggest
from ramet.config.keys import FIELDS, JOBS, unused_key

FILES = ("config", "config-file", "config_file", "config-name", "config-path")  # a file of settings, in other systems


def flag_problems(job: str, unknown: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return what to write instead of each unknown option; arguments that stand between them are left out.

    options: those that the job has.
    """
    return [_problem(job, flag, options) for flag in unknown if flag.startswith("-")]


def _problem(job: str, flag: str, options: Sequence[str]) -> str:
    name = flag.lstrip("-").partition("=")[0]
    if name in FILES:
        return (
            f"{flag}: a file of settings is chosen as experiment=NAME, from hydra_configs/experiment/NAME.yaml "
            "(--config-dir DIR names another folder); a file of another trainer: ramet migrate"
        )
    key = name.replace("-", "_")
    keys = list(dict.fromkeys(_keys(job, key)))
    if keys:
        return f"{flag}: keys are written without dashes. Did you mean {' or '.join(f'{key}=…' for key in keys[:2])}?"
    hint = reason(key) or suggest(flag.partition("=")[0].replace("_", "-"), options)
    return f"unrecognized arguments: {flag};{hint} see `ramet {job} --help`"


def _keys(job: str, name: str) -> Iterator[str]:
    """Yield our keys for a name: what other trainers call so, and those that are called so or end so."""
    sections = JOBS[job]
    yield from meant(name, lambda candidate: candidate.partition(".")[0] in sections) or ()
    for key in FIELDS:
        is_section = any(other.startswith(f"{key}.") for other in FIELDS)
        if name in (key, key.rpartition(".")[2]) and not is_section and unused_key(key, job) is None:
            yield key
