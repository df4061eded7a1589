"""`ramet plugins`: what is installed, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoint, entry_points

from ramet.cli.terminal import Parser, say, text_table
from ramet.config.catalog import make_catalog
from ramet.plugins import PluginInfo, load_plugins
from ramet.plugins.extensions import COMMANDS, extensions, package_folders
from ramet.plugins.registry import BUILTIN
from ramet.plugins.sources import PRESETS, blocked_plugins

HEADER = ("NAME", "DISTRIBUTION", "VERSION", "CONTRACT", "OFFERS")


def run(arguments: Sequence[str]) -> int:
    parser = Parser(prog="ramet plugins", add_help=False, description="What is installed, and what failed to load.")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    options = parser.read(arguments)
    if options is None:
        return 0
    rows = listing()
    say(as_json(rows) if options.json else as_table(rows))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One plugin with what only the configuration knows of it."""

    info: PluginInfo
    presets: dict[str, list[str]]  # group -> names
    unusable: dict[str, str]  # group.name -> why its options cannot be typed
    commands: list[str]


def listing() -> list[Listed]:
    """Everything installed, in the order of loading; `ramet JOB --help` calls the same components unusable."""
    plugins = load_plugins()
    points = {point.name: point for point in entry_points(group=PRESETS) if point.name not in blocked_plugins()}
    presets = {name: _presets(point.value) for name, point in points.items()} | {BUILTIN: _presets("ramet.conf")}
    loaded_names = {info.name for info in plugins.infos}
    only_presets = [_without_code(point) for name, point in sorted(points.items()) if name not in loaded_names]
    components, commands = make_catalog(plugins).components, extensions(COMMANDS)
    listed = []
    for info in [*plugins.infos, *only_presets]:
        unusable = {f"{group}.{name}": str(components[group][name].unusable) for group, names in info.offers.items()
                    for name in names if components[group][name].unusable}  # fmt: skip
        added = [entry.name for entry in commands if entry.distribution == info.distribution]
        listed.append(Listed(info=info, presets=presets.get(info.name, {}), unusable=unusable, commands=added))
    return listed


def _without_code(point: EntryPoint) -> PluginInfo:
    """A package that ships only presets."""
    name, version = ("unknown", "") if point.dist is None else (point.dist.name, point.dist.version)
    return PluginInfo(name=point.name, module=point.value, distribution=name, version=version)


def _presets(package: str) -> dict[str, list[str]]:
    """Group -> names of the YAML files in the folder of this group; empty for a package that is not there."""
    names_by_group: dict[str, list[str]] = {}
    for folder in package_folders(package):
        for file in sorted(folder.glob("*/*.yaml")):
            names_by_group.setdefault(file.parent.name, []).append(file.stem)
    return names_by_group


def as_json(listed: Sequence[Listed]) -> str:
    return json.dumps(
        [
            asdict(entry.info) | {"presets": entry.presets, "unusable": entry.unusable, "commands": entry.commands}
            for entry in listed
        ],
        indent=2,
    )


def as_table(listed: Sequence[Listed]) -> str:
    return text_table(HEADER, map(_row, listed))


def _row(entry: Listed) -> tuple[str, ...]:
    info = entry.info
    names = [f"{group}={'|'.join(presets)}" for group, presets in entry.presets.items()]
    parts = [f"{group}: {', '.join(offered)}" for group, offered in info.offers.items()]
    parts += [f"presets: {', '.join(names)}"] * bool(names)
    parts += [f"commands: {', '.join(entry.commands)}"] * bool(entry.commands)
    parts += [f"UNUSABLE {where}: {reason}" for where, reason in entry.unusable.items()]
    parts += [f"SLOW {info.slow}"] * bool(info.slow)
    state = "; ".join(parts) or "nothing" if info.broken is None else "BROKEN " + " ".join(info.broken.split())
    return info.name, info.distribution, info.version or "-", info.contract or "-", state
