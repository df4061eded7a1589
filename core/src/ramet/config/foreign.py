"""Tables of other trainers' keys: what each is called here, how its value is translated, or why it has no counterpart.

`ramet migrate` translates by them, and the hint for a key that does not exist comes from the same rows. The tables are
in `keys_of_others`, one a trainer (verl's SFT trainer has its own), with the columns of `KeyRow`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ramet.errors import ConfigError

TRAINERS = {"verl": "verl", "llamafactory": "LLaMA-Factory", "trl": "TRL"}
TABLES = {**TRAINERS, "verl_sft": "verl"}  # table of keys -> whose
FOLDER = Path(__file__).with_name("keys_of_others")
REFERENCE = re.compile(r"\$\{[\w.\[\]/-]+\}")  # to another key, and no function
UNSET: Any = object()  # no value without the key, or the same as Ramet's


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """One row. `rule`: same, list, none, code (a function of `ramet.migrate`), or pairs `theirs=ours`.

    In pairs `*` takes every other value as it is, and nothing after `=` means that our default says the same.
    `default`: the value without the key, where Ramet's is another. `why`: the reason. `when`: the key that makes the
    trainer read this one (`KEY`, `KEY=value|value`), or keeps it from that (`!KEY`).
    """

    name: str
    rule: str
    ours: tuple[str, ...]
    default: Any
    why: str
    when: str

    @property
    def pairs(self) -> dict[str, str]:
        return dict(pair.partition("=")[::2] for pair in self.rule.split())


@functools.cache
def table(name: str) -> dict[str, KeyRow]:
    """The rows of a table, by the name of the trainer's key."""
    lines = (FOLDER / f"{name}.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return {row.name: row for row in map(_row, lines)}


def _row(line: str) -> KeyRow:
    name, rule, ours, default, why, *when = line.split("\t")
    value = yaml.safe_load(default) if default else UNSET
    return KeyRow(name=name, rule=rule, ours=tuple(ours.split()), default=value, why=why, when="".join(when))


def read_keys(path: Path) -> Mapping[str, Any]:
    """Return the tree of another trainer's config file, references as they are written. Raises `ConfigError`."""
    try:
        tree = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not isinstance(tree, dict) or not tree:
        raise ConfigError(f"{path}: holds no keys")
    return {str(key): value for key, value in tree.items()}


def follow_references(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return values by dotted key, with what each `${…}` refers to, and why others are not known.

    A variable of the environment is not followed: it may be a secret, and is not the launch's own. Nor is any other
    function, whose name may be a reference too.
    """
    tree, unknown = OmegaConf.create({}), dict[str, str]()
    for key, value in values.items():
        try:
            if "${" in REFERENCE.sub("", str(value)):
                unknown[key] = f"{value} is a function of Hydra, as is a variable of the environment"
            else:
                OmegaConf.update(tree, key, value, force_add=True)
        except (OmegaConfBaseException, TypeError, AttributeError):
            unknown[key] = "it is a section elsewhere and a value here"
    followed: dict[str, Any] = {}
    for key, value in values.items():
        if "${" not in str(value):
            followed[key] = value
        elif key not in unknown:
            try:
                target = OmegaConf.select(tree, key)
                is_tree = isinstance(target, DictConfig | ListConfig)
                followed[key] = OmegaConf.to_container(target, resolve=True) if is_tree else target
            except OmegaConfBaseException:
                unknown[key] = f"{value} refers to what the launch does not set"
    return followed, unknown
