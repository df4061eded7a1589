"""Recipes and presets of the user's folders may not name programs or files of code by themselves: they are passed on.

A component's options say which of them do, by `runs_code(self) -> dict[str, str]`: option -> what it names. What the
user typed runs, what plugins and Ramet ship runs; what a file of `hydra_configs/` or `--config-dir` names is refused
unless the user trusts that file.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from ramet.config.provenance import Layer
from ramet.config.sections import TRUST
from ramet.errors import ConfigError

_trusted: ContextVar[tuple[Path, ...]] = ContextVar("trusted_recipes", default=())


@contextmanager
def trusting(files: Iterable[Path]) -> Iterator[None]:
    """Trust these files in the block: configurations may hold them too. Raises `ConfigError` for an absent one."""
    added = tuple(files)
    for file in added:
        if not file.is_file():
            raise ConfigError(f"{TRUST}: no file {str(file)!r} (working directory: {Path.cwd()})")
    token = _trusted.set((*_trusted.get(), *added))
    try:
        yield
    finally:
        _trusted.reset(token)


def trusted_recipes() -> tuple[Path, ...]:
    """Return the files that the user trusts, as they were given."""
    return _trusted.get()


def code_options(components: Mapping[str, Any]) -> dict[str, str]:
    """Return key -> the program or file of code that it names, of components by `GROUP.NAME`."""
    return {
        f"{key}.params.{option}": value
        for key, component in components.items()
        for option, value in getattr(component.params, "runs_code", dict)().items()
    }


def untrusted(code: Mapping[str, str], layers: Iterable[Layer]) -> list[str]:
    """Return one problem for each of `layers` that sets a key of `code` and that the user does not trust.

    `layers` come from the user's folders.
    """
    named = ((layer.file, {key: code[key] for key in code if layer.sets(key)}) for layer in layers)
    return [problem for file, own in named for problem in untrusted_file(file, own)]


def untrusted_file(file: Path, code: Mapping[str, str]) -> list[str]:
    """Return what is wrong with a file of the user's folders that sets the keys of `code`; nothing if it is trusted."""
    if not code or file.resolve() in {trusted.resolve() for trusted in _trusted.get()}:
        return []
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    named = ", ".join(f"{key} ({value})" for key, value in code.items())
    return [
        f"{shown}: has a program or file of code run by {named}, and a file that is passed on may "
        f"not do that by itself; read it, and add to the command: {TRUST} {shlex.quote(str(shown))}"
    ]
