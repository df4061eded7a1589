"""The keys of another trainer, their translation, and what became of each: every key that was given has a note."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import yaml

from ramet.config.foreign import TRAINERS, UNSET, KeyRow, table
from ramet.config.gone import shown
from ramet.config.keys import unused_key
from ramet.errors import ConfigError


class Fate(StrEnum):
    """The fate of a key."""

    TRANSLATED = "translated"
    DIFFERS = "translated, with a difference"
    OPEN = "to decide"  # the recipe needs something that only its reader knows
    IGNORED = "ignored by the source"
    LEFT = "without counterpart"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyNote:
    """One sentence about a key. `given` is False for a value that was in force without the key."""

    key: str
    value: Any
    given: bool
    fate: Fate
    why: str


@dataclass(slots=True, kw_only=True)
class Settings:
    """Settings of a source: its keys, the keys that could not be read with the reason, and remarks."""

    values: dict[str, Any] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    is_sft: bool = False  # of verl's SFT trainer
    processes: int | None = None  # that torchrun starts
    tools: dict[str, str] = field(default_factory=dict)  # name -> class of verl, of the launch's file of tools


@dataclass(slots=True, kw_only=True)
class Translation:
    """The recipe of the settings of `trainer`. `unread` and `remarks` come from `Settings`."""

    trainer: str
    job: str  # of Ramet
    given: Mapping[str, Any]
    choices: dict[str, Any] = field(default_factory=dict)  # group -> name, or names
    values: dict[str, Any] = field(default_factory=dict)  # our keys
    notes: list[KeyNote] = field(default_factory=list)
    unread: Mapping[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    table: str = ""  # of keys, where it is not the trainer's

    @property
    def source(self) -> str:
        """The trainer's name as it is written."""
        return TRAINERS[self.trainer]

    @property
    def rows(self) -> dict[str, KeyRow]:
        return table(self.table or self.trainer)

    def full(self, key: str) -> str:
        """Return the full name of a key, where verl's `actor_rollout_ref.` is left out."""
        is_whole = self.rows is not table("verl") or key in self.rows or key in self.given
        return key if is_whole else f"actor_rollout_ref.{key}"

    def has(self, key: str) -> bool:
        """Return whether the key was given."""
        return self.full(key) in self.given

    def get(self, key: str) -> Any:
        """The value of the trainer's key, given or in force without it; None for neither.

        An empty text counts as None.
        """
        key = self.full(key)
        if key in self.given and self.given[key] != "":
            return self.given[key]
        row = self.rows.get(key)
        return None if row is None or row.default is UNSET else row.default

    def is_read(self, key: str) -> bool:
        """Return whether the trainer reads a key, by the column `when` of its row."""
        when = self.rows[key].when if key in self.rows else ""
        switch, equals, values = when.removeprefix("!").partition("=")
        if not switch:
            return True
        value = self.get(switch)
        is_on = shown(value) in values.split("|") if equals else bool(value)
        return self.is_read(switch) and is_on != when.startswith("!")

    def number(self, key: str, otherwise: int = 0) -> int:
        """The whole number that a key has, `otherwise` where it has none. Raises `ConfigError`."""
        value = self.get(key)
        try:
            number = otherwise if value is None else int(value)
            if isinstance(value, float) and number != value:
                raise ValueError(value)
            return number
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"{self.full(key)}={shown(value)}: expected a whole number") from error

    def fraction(self, key: str) -> float:
        """The number that a key has, 0 where it has none. Raises `ConfigError`."""
        value = self.get(key)
        try:
            return float(value or 0)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.full(key)}={shown(value)}: expected a number") from error

    def set(self, ours: str, value: Any, *keys: str, why: str = "") -> None:
        """Set a key of Ramet from these keys. `why` names the difference; without it they mean the same."""
        self.values[ours] = value
        self._note(Fate.DIFFERS if why else Fate.TRANSLATED, keys, why or f"{ours}={shown(value)}")

    def choose(self, group: str, name: Any, *keys: str, why: str = "") -> None:
        """Choose a component of Ramet, or several."""
        self.choices[group] = name
        self._note(Fate.DIFFERS if why else Fate.TRANSLATED, keys, why or f"{group}={shown(name)}")

    def same(self, *keys: str, why: str) -> None:
        """Note that these keys ask for the default."""
        self._note(Fate.TRANSLATED, keys, why)

    def ignored(self, *keys: str, why: str) -> None:
        """Note what the trainer itself does not read. Only keys that were given are named."""
        self._note(Fate.IGNORED, filter(self.has, keys), why)

    def left(self, *keys: str, why: str) -> None:
        """Note what has no counterpart. Only keys that were given are named."""
        self._note(Fate.LEFT, filter(self.has, keys), why)

    def open(self, key: str, why: str) -> None:
        """Note what the reader of the recipe has to decide."""
        self._note(Fate.OPEN, [key], why)

    def translate_by_table(self) -> None:
        """Translate all keys whose row says how, those in force without being given too."""
        for row in self.rows.values():
            if not self.is_read(row.name):
                kept = f"not read with {row.when[1:]}" if row.when[0] == "!" else f"not read without {row.when}"
                self.ignored(row.name, why=kept)
                continue
            if self.given.get(row.name) == "" and row.default is not UNSET and not isinstance(row.default, bool):
                why = f"empty in the launch, as of a variable that is set elsewhere: {shown(row.default)} was taken"
                self.open(row.name, why)
            ours = next((key for key in row.ours if unused_key(key, self.job) is None), None)
            if row.rule == "code" or (row.name not in self.given and row.default is UNSET):
                continue
            if row.rule == "none":
                self.left(row.name, why=row.why)
            elif ours is not None:
                self._by_rule(row, ours, self.get(row.name))

    def _by_rule(self, row: KeyRow, ours: str, value: Any) -> None:
        if row.rule == "list" and not value:
            self.open(row.name, f"empty: set {ours}=[FILE]")
        elif row.rule == "list":
            self.set(ours, as_list(value), row.name)
        elif value is None:
            self.same(row.name, why=f"empty: {ours} has its default")
        elif row.rule == "same":
            self.set(ours, value, row.name, why=f"{ours}={shown(value)}: {row.why}" if row.why else "")
        else:
            self._by_pairs(row, ours, value)

    def _by_pairs(self, row: KeyRow, ours: str, value: Any) -> None:
        words = {name.lower(): meant for name, meant in row.pairs.items()}
        meant = words.get(shown(value).lower())
        if meant == "":
            self.same(row.name, why=f"{ours} has its default, which says the same")
        elif meant is not None:
            self.set(ours, yaml.safe_load(meant), row.name)
        elif "*" in words:
            self.set(ours, value, row.name)
        else:
            self.left(row.name, why=f"no counterpart of {shown(value)}; {ours} is translated for {', '.join(words)}")

    def model_code(self, key: str) -> None:
        """Note that a recipe may not let a model's own code run."""
        if self.get(key):
            self.open(key, "a recipe may not let code of a model run: add model.trust_remote_code=true to the command")
        else:
            self.same(key, why="no code of a model is run")

    def adapter_scale(self, key: str, rank: int) -> None:
        """Note whether the scale of an adapter is Ramet's, which is always twice its rank."""
        if self.get(key) in (None, 2 * rank):
            self.same(key, why="the scale is 2 x the rank")
        else:
            why = f"the scale of an adapter is always 2 x its rank: {2 * rank} instead of {self.get(key)}"
            self._note(Fate.DIFFERS, [key], why)

    def set_run(self, name: str, *keys: str) -> None:
        """Set `run.name` to a name, without characters that are not allowed."""
        if ours := re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")[:128]:
            why = "" if ours == name else f"run.name={ours}: letters, digits and . _ - are allowed"
            self.set("run.name", ours, *keys, why=why)

    def set_trackers(self, key: str, wandb: str, ours: str) -> None:
        """Set the trackers of `key`, and the name of `wandb` where that one takes it: `ours` is refused without it."""
        wanted = as_list(self.get(key) or "none")
        kept = [tracker for tracker in ("wandb", "tensorboard") if tracker in wanted or "all" in wanted]
        self.set("trackers", ["console", "jsonl", *kept], key)
        if "wandb" in kept and self.get(wandb):
            self.set(ours, self.get(wandb), wandb)
        else:
            self.ignored(wandb, why="a name for trackers, and wandb is not among them")
        if others := [tracker for tracker in wanted if tracker not in (*kept, "none", "all", "console", "file")]:
            self.left(key, why=f"no tracker {', '.join(others)}; metrics are always in metrics.jsonl")

    def finish(self) -> None:
        """Note every given key that has no note yet, and write the model's folder as it is used here."""
        if (path := str(self.values.get("model.path"))).startswith("~"):
            self.values["model.path"] = os.path.expanduser(path)
        noted = {note.key for note in self.notes}
        for key in (key for key in self.given if key not in noted):
            if (row := self.rows.get(key)) is None:
                self.left(key, why=f"not among the keys of {self.source} that are translated")
            else:
                self.left(key, why=row.why or f"`ramet {self.job}` has nothing like it")

    def _note(self, fate: Fate, keys: Iterable[str], why: str) -> None:
        for key in map(self.full, keys):
            value = self.given[key] if key in self.given else self.get(key)
            self.notes.append(KeyNote(key=key, value=value, given=key in self.given, fate=fate, why=why))


def as_list(value: Any) -> list[str]:
    """A list of texts: `a`, `[a, b]`, and the text `"['a', 'b']"` that shells hand on."""
    if isinstance(value, str) and value.strip().startswith("["):
        with contextlib.suppress(yaml.YAMLError):
            value = yaml.safe_load(value)
    return [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]
