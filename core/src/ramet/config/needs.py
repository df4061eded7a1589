"""Packages that a recipe needs: its comment `# Needs: ramet[train] ramet-arpo`, written as for pip."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution, requires
from importlib.util import find_spec

_LINE = re.compile(r"^# Needs: (.+)$", re.MULTILINE)
_NEED = re.compile(r"([\w.-]+)(?:\[([\w,.-]+)\])?")
_EXTRA = re.compile(r"([\w.-]+).*\bextra\s*==\s*['\"]([\w-]+)['\"]")


def needs_of(text: str) -> list[str]:
    """The requirements that a recipe's text lists, in their order; none without such a comment."""
    match = _LINE.search(text)
    return match[1].split() if match else []


def missing(needs: Iterable[str]) -> list[str]:
    """Return the needs that are not installed, as pip takes them; of `name[a,b]` the extras that are not."""
    lacking = []
    for need in needs:
        match = _NEED.fullmatch(need)
        if match is None:
            lacking.append(need)
            continue
        name, extras = match[1], [extra for extra in (match[2] or "").split(",") if extra]
        brought = extras_of(name)
        absent = [extra for extra in extras if not all(map(_is_installed, brought.get(extra, ())))]
        if not _is_installed(name):
            lacking.append(need)
        elif absent:
            lacking.append(f"{name}[{','.join(absent)}]")
    return lacking


def extras_of(name: str) -> dict[str, list[str]]:
    """Extra -> the distributions that it brings; empty for a distribution that is not installed."""
    try:
        lines = requires(name) or []
    except PackageNotFoundError:
        return {}
    extras: dict[str, list[str]] = {}
    for line in lines:
        if match := _EXTRA.match(line):
            extras.setdefault(match[2], []).append(match[1])
    return extras


def _is_installed(name: str) -> bool:
    """Check for a distribution or an importable package: builds for other hardware have names of their own."""
    try:
        distribution(name)
    except PackageNotFoundError:
        spec = find_spec(name.replace("-", "_").replace(".", "_"))
        return spec is not None and spec.origin is not None  # a folder of that name is not a package
    return True
