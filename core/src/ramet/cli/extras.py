"""Which extra of `ramet` brings a package that is not installed."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

_REQUIREMENT = re.compile(r"([\w.-]+).*\bextra\s*==\s*['\"]([\w-]+)['\"]")


def missing_package(error: ModuleNotFoundError) -> str | None:
    """The message for a package that an extra brings; None for any other module, which is a defect."""
    module = (error.name or "").partition(".")[0]
    extra = _extras().get(module)
    if extra is None:
        return None
    return f"this needs the package {module!r}, which is not installed; install it with: pip install 'ramet[{extra}]'"


def _extras() -> dict[str, str]:
    """Module -> extra. The modules of all of them are named like their distributions."""
    try:
        lines = requires("ramet") or []
    except PackageNotFoundError:
        return {}
    found = (_REQUIREMENT.match(line) for line in lines)
    return {match[1].replace("-", "_"): match[2] for match in found if match}
