"""What a new plugin may be called: one name serves as registered name, entry point, module and distribution."""

from __future__ import annotations

import builtins
import keyword
import re

import ramet
from ramet.plugins import Plugins, load_plugins
from ramet.scaffold.kinds import Kind, camel

PATTERN = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
LONGEST = 40  # what the registry allows, less what is put around a name in modules and distributions
HOOK_PARAMETER = "register"  # a tool of this name would hide it


def check_name(kind: Kind, name: str) -> list[str]:
    """What is wrong with this name, in words for the user."""
    if not PATTERN.fullmatch(name) or len(name) > LONGEST:
        better = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_0123456789")[:LONGEST]
        hint = f" Did you mean {better!r}?" if PATTERN.fullmatch(better) and better != name else ""
        return [
            f"name: {name!r} is not allowed: lower-case letters, digits and single underscores between them, a letter "
            f"first, at most {LONGEST} characters.{hint}"
        ]
    if name.startswith("ramet_") or name == "ramet":
        rest = name.removeprefix("ramet").strip("_") or "weather"
        return [
            f"name: leave 'ramet' out of {name!r}: {rest!r} becomes the distribution ramet-{rest.replace('_', '-')}"
        ]
    defined = kind.defines.format(name=name, Name=camel(name))
    if keyword.iskeyword(defined) or hasattr(builtins, defined) or defined in (*ramet.__all__, HOOK_PARAMETER):
        return [f"name: {name!r} would hide a name of Python or of ramet in the module ({defined}); choose another"]
    return _taken(kind, name, load_plugins())


def _taken(kind: Kind, name: str, plugins: Plugins) -> list[str]:
    """Both are fatal when plugins are loaded, so they are refused before anything is written."""
    plugin = next((info for info in plugins.infos if info.name == name), None)
    if plugin is not None:
        return [f"name: {name!r} is the name of a plugin that is installed ({plugin.distribution}); choose another"]
    registry = getattr(plugins.registries, kind.registry)
    if name in registry:
        return [f"name: the {kind.noun} {name!r} is offered by {registry.get(name).distribution}; choose another"]
    return []
