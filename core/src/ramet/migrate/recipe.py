"""The recipe of a translation: a file of Hydra with the choices, the values, and the fate of all other keys."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ramet.config.catalog import LOCAL
from ramet.config.foreign import UNSET
from ramet.config.gone import shown
from ramet.config.keys import KINDS
from ramet.config.secrets import hide, hide_argument
from ramet.errors import ConfigError
from ramet.migrate.translation import Fate, KeyNote, Translation
from ramet.plugins import load_plugins

HEADINGS = {
    Fate.OPEN: "To decide before the first run:",
    Fate.DIFFERS: "Translated, with a difference:",
    Fate.IGNORED: "Not read by the source either:",
    Fate.LEFT: "Without counterpart:",
}
EXTRAS = ("ray", "vllm", "wandb", "tensorboard")  # choices and trackers that are extras of the core as well


def recipe_text(made: Translation, origin: str) -> str:
    """Return the text of the file. `origin`: the name of the source's file."""
    comment = [
        "@package _global_",
        f"{made.source}'s {' '.join(origin.split())}, as `ramet migrate {made.trainer}` has translated it.",
        f"Needs: {' '.join(_needs(made))}",
        "",
        *(part for line in report_lines(made) for part in line.splitlines()),
    ]
    chosen = {group: name for group, name in made.choices.items() if name != []}
    defaults = [f"  - override /{group}: {shown(name)}" for group, name in chosen.items()]
    body = yaml.safe_dump(_nested(made.values), sort_keys=False, allow_unicode=True) if made.values else ""
    lines = [*(f"# {line}".rstrip() for line in comment), *(["defaults:"] if defaults else []), *defaults]
    return "\n".join(lines) + "\n\n" + body


def report(made: Translation, path: Path) -> str:
    """List translated and other keys with the reasons, and how the recipe in `path` is tried."""
    counts = {
        fate: len({note.key for note in made.notes if note.fate is fate and (note.given or fate is Fate.OPEN)})
        for fate in Fate
    }
    head = (
        f"{path}: {len(made.given) + len(made.unread)} keys of {made.source}, "
        f"{counts[Fate.TRANSLATED] + counts[Fate.DIFFERS]} translated, {counts[Fate.IGNORED]} not read by "
        f"{made.source} either, {counts[Fate.LEFT] + len(made.unread)} without counterpart, {counts[Fate.OPEN]} to "
        "decide"
    )
    trial = f"try it: ramet {made.job} experiment={path.stem} --dry-run"
    if path.parent.name != "experiment":
        trial = f"put it into {LOCAL}/experiment, and {trial}"
    elif path.parent.parent != Path(LOCAL):
        trial += f" --config-dir {shlex.quote(str(path.parent.parent))}"
    if made.choices.get("cluster") == "ray":
        trial += f" --on {made.values['cluster.policy_workers']}x80GiB"  # until the reader says more
    if "rewards.custom.params.path" in made.values:
        trial += f" --trust-recipe {shlex.quote(str(path))}"
    return "\n".join([head, *report_lines(made), trial])


def report_lines(made: Translation) -> Iterator[str]:
    """List the keys to decide, the different ones, and the omitted ones with the reasons."""
    for fate, heading in HEADINGS.items():
        lines = dict.fromkeys(f"  {_written(note)}: {note.why}" for note in made.notes if note.fate is fate)
        if fate is Fate.LEFT:
            unread = (f"  {hide_argument(key)}: {hide(why)}{_taken(made, key)}" for key, why in made.unread.items())
            lines |= dict.fromkeys(unread)
        if lines:
            yield heading
            yield from lines
    if made.remarks:
        yield "Of the source:"
        yield from (f"  {hide(remark)}" for remark in made.remarks)


def write_recipe(path: Path, text: str) -> None:
    """Write the file. Raises `ConfigError` if it is there already, or cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{path}: is there already; name another file with --out") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


def _written(note: KeyNote) -> str:
    value = " ".join(shown(note.value).split())
    if note.given:
        return hide_argument(f"{note.key}={value}")
    return f"{note.key} (not set: {value})" if value != "null" else note.key


def _taken(made: Translation, key: str) -> str:
    """Return what the recipe has for a key whose value is not known, where the trainer's own default was taken."""
    row = made.rows.get(key)
    return "" if row is None or row.default is UNSET else f"; the value without it, {shown(row.default)}, was taken"


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = _literal(value)
    return tree


def _literal(value: Any) -> Any:
    """Return a value as YAML of Hydra has it: `${` of a source is text, and no variable of who composes the recipe."""
    if isinstance(value, dict):
        return {name: _literal(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value


def _needs(made: Translation) -> list[str]:
    """Return the requirements of the recipe: the core's extras, and the packages of its components."""
    chosen = [*made.choices.values(), *made.values.get("trackers", [])]
    values = made.values
    needed = {
        "deepspeed": str(values.get("sft.strategy")).startswith("zero"),
        "lora": values.get("policy.lora_rank") or values.get("sft.lora_rank"),
    }
    extras = ["train", *(name for name in EXTRAS if name in chosen), *(name for name in needed if needed[name])]
    owners, registries = set[str](), load_plugins().registries
    used = [ours for key, ours in values.items() if key.startswith("tools.") and key.endswith(".use")]
    for group, names in [*made.choices.items(), ("tools", used)]:
        kind = KINDS.get(group)
        registry = None if kind is None else getattr(registries, kind)
        for name in names if isinstance(names, list) else [names]:
            if registry is not None and name in registry:
                owners.add(registry.get(name).distribution)
    return [f"ramet[{','.join(extras)}]", *sorted(owners - {"ramet"})]
