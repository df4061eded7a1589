"""Which imports a package may lack: those of its own extras and of the core's. Runs inside the environment."""

from __future__ import annotations

import re
from importlib.metadata import requires

CORE = "ramet"
FOR_TESTS = "test"  # what only tests need is no excuse for a module


def modules_of_extras(distribution: str) -> dict[str, str]:
    """Top-level module -> the extra that brings it, as `ramet[train]`."""
    found = {}
    for owner in dict.fromkeys((CORE, distribution)):
        for requirement in requires(owner) or []:
            name, _, marker = requirement.partition(";")
            extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
            if extra and extra[1] != FOR_TESTS:
                project = re.match(r"[\w.-]+", name)
                assert project is not None
                found[project[0].replace("-", "_")] = f"{owner}[{extra[1]}]"
    return found


def extra_for(error: BaseException | None, extras: dict[str, str]) -> str | None:
    """The extra whose absence an error goes back to, None if it goes back to something else."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            return extras.get((error.name or "").partition(".")[0])
        error = error.__cause__ or error.__context__
    return None
