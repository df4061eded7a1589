"""LLaMA-Factory's `dataset_info.json`: names of data sets, and what each entry says of its files.

`DIR/dataset_info.json:NAME` names one of them wherever files of SFT are named, `…:NAME@REVISION` at a revision of the
hub. What an entry asks for and SFT here does not have is refused by name.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramet.config.schema_sft import COLUMNS, FORMATTINGS, TAGS
from ramet.data.files import find_files
from ramet.errors import ConfigError
from ramet.hub import HubName, fetch_data
from ramet.io.json_values import cut

SEPARATOR = ".json:"
HUB = "hf_hub_url"
ELSEWHERE = ("ms_hub_url", "script_url", "cloud_file_name")
INSTEAD = {"converter": "formatting", "size": "num_samples", "weight": "sft.mixing.probs"}  # of LLaMA-Factory's v1
SPLIT = re.compile(r"[\w.-]+")
SFT_ONLY = "`ramet sft` trains only on conversations of text"
OTHER_ROWS = {  # columns of other trainings
    "chosen": "a ranking row",
    "rejected": "a ranking row",
    "kto_tag": "a KTO row",
    "image": "a row with images",
    "images": "a row with images",
    "videos": "a row with videos",
    "audios": "a row with audio",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Files that are read alike. `entry`: their entry in a `dataset_info.json`; None: they were named directly."""

    name: str
    source: str  # the path, pattern or name that stands for it
    files: tuple[Path, ...]
    entry: Mapping[str, Any] | None = None


@dataclass(slots=True, kw_only=True)
class FoundSets:
    """The named sets in order, and their problems."""

    sets: list[DataSet] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def find_sets(patterns: Sequence[str], *, fetch: bool = True) -> FoundSets:
    """The data sets that paths, patterns and names in a `dataset_info.json` stand for.

    `fetch`: sets of the hub are fetched, or found in its cache; otherwise they have no files. Raises `InfraError` if a
    transfer breaks off.
    """
    found, seen = FoundSets(), set[Path]()
    for pattern in dict.fromkeys(patterns):
        if SEPARATOR in pattern:
            _add_named(found, pattern, fetch)
            continue
        files, problems = find_files([pattern])
        found.problems += problems
        new = [file for file in files if file not in seen]
        seen.update(new)
        found.sets += [DataSet(name=str(file), source=pattern, files=(file,)) for file in new]
    return found


def hub_entry(text: str) -> HubName | None:
    """The data set of the hub that is named in a `dataset_info.json`; None for files, and for what cannot be read."""
    try:
        named = _named(text) if SEPARATOR in text else None
    except ConfigError:
        return None  # `find_sets` says why
    return None if named is None or any(_problems(named.entry)) else named.hub


def pinned(text: str, commit: str) -> str:
    """Return `DIR/dataset_info.json:NAME` as the name of the set at this commit."""
    named = _named(text)
    return f"{named.path}:{named.name}@{commit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An entry of a `dataset_info.json`."""

    path: Path
    name: str
    revision: str | None
    entry: Mapping[str, Any]

    @property
    def place(self) -> Path | None:
        """The path of its file or folder."""
        name = self.entry.get("file_name")
        return self.path.parent / name if isinstance(name, str) else None

    @property
    def hub(self) -> HubName | None:
        """The set of the hub; None where its files are here."""
        if not self.entry.get(HUB) or (self.place is not None and self.place.exists()):
            return None
        return HubName(
            kind="dataset",
            id=self.entry[HUB],
            revision=self.revision or self.entry.get("revision"),
            subset=self.entry.get("subset"),
            split=self.entry.get("split", "train"),
        )

    def files(self) -> tuple[list[Path], list[str]]:
        """Return the files here, and their problems. As in LLaMA-Factory, a folder stands for its files."""
        place = str(self.place)
        return find_files([f"{glob.escape(place)}/*" if os.path.isdir(place) else place])


def _named(pattern: str) -> _Entry:
    """Raises `ConfigError` for a file that cannot be read, and a name that is not in it."""
    head, _, name = pattern.rpartition(SEPARATOR)
    path = Path(os.path.expanduser(head + ".json"))
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no such file {path} (working directory: {Path.cwd()})") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    entries = entries if isinstance(entries, dict) else {}
    revision = None
    if name not in entries and "@" in name:
        name, _, revision = name.rpartition("@")
    entry = entries.get(name)
    if not isinstance(entry, dict):
        raise ConfigError(f"{path} has no data set {name!r}; it has {', '.join(entries) or 'none'}")
    return _Entry(path=path, name=name, revision=revision, entry=entry)


def _add_named(found: FoundSets, pattern: str, fetch: bool) -> None:
    files: list[Path] = []
    try:
        named = _named(pattern)
        problems = list(_problems(named.entry))
        if not problems and named.hub is not None:
            files = [fetch_data(named.hub).path] if fetch else []
        elif not problems:
            files, problems = named.files()
    except ConfigError as error:
        problems = [str(error)]
    if problems:
        found.problems += [f"{pattern}: {problem}" for problem in problems]
    else:
        found.sets.append(DataSet(name=pattern, source=pattern, files=tuple(files), entry=named.entry))


def _problems(entry: Mapping[str, Any]) -> Iterator[str]:
    hub, file_name = entry.get(HUB), entry.get("file_name")
    for key in ELSEWHERE:
        if entry.get(key) and not hub:
            yield f"{key}: {cut(entry[key])} is not a file here; fetch it, and name its file as file_name"
    if hub and not isinstance(hub, str):
        yield f"{HUB}: expected a text, got {cut(hub)}"
    if not hub and not isinstance(file_name, str) and not any(entry.get(key) for key in ELSEWHERE):
        yield f"file_name: expected a text, got {cut(file_name)}"
    for key, ours in INSTEAD.items():
        if entry.get(key) not in (None, 1):
            yield f"{key}: {cut(entry[key])}; not read, use {ours}"
    if entry.get("folder"):
        yield f"folder: {cut(entry['folder'])}; name the files, as in sft.data=[hf://datasets/OWNER/NAME/FOLDER/*]"
    for key in ("subset", "revision"):
        if entry.get(key) is not None and not (hub and isinstance(entry[key], str)):
            yield f"{key}: {cut(entry[key])}; read only of a set of the hub ({HUB}), as a text"
    split = entry.get("split", "train")
    if not isinstance(split, str) or SPLIT.fullmatch(split) is None or (split != "train" and not hub):
        yield f"split: {cut(split)}; a file has no splits but 'train', and a set of the hub is read split by split"
    if entry.get("ranking"):
        yield "ranking: true; `ramet sft` trains on conversations, not on ranking rows"
    formatting = entry.get("formatting", "alpaca")
    if formatting not in FORMATTINGS:
        yield f"formatting: {cut(formatting)}; allowed: {', '.join(FORMATTINGS)}"
    samples = entry.get("num_samples")
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1):
        yield f"num_samples: expected a whole number of at least 1, got {cut(samples)}"
    yield from _names(entry, "columns", COLUMNS)
    yield from _names(entry, "tags", TAGS)
    if formatting == "alpaca" and isinstance(entry.get("columns"), dict) and not entry["columns"].get("response"):
        yield "columns: no 'response', so its rows are for pre-training; `ramet sft` trains on conversations"


def _names(entry: Mapping[str, Any], key: str, allowed: Sequence[str]) -> Iterator[str]:
    named = entry.get(key) or {}
    if not isinstance(named, dict):
        yield f"{key}: expected an object, got {cut(named)}"
        return
    for name, value in named.items():
        if value is not None and not isinstance(value, str):
            yield f"{key}: {name}: expected a text, got {cut(value)}"
        elif value and name in OTHER_ROWS:
            yield f"{key}: {name}: {OTHER_ROWS[name]}; {SFT_ONLY}"
        elif value and name not in allowed:
            yield f"{key}: {name}: not known; allowed: {', '.join(allowed)}"
