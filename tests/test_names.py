"""Names: no class name means two things, and no module or class has a name of Ramet's former dialect."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [ROOT / "core" / "src", *sorted(ROOT.glob("plugins/*/src"))]
# Names of the first versions, which told nothing to readers who knew the field and not Ramet.
FORMER_CLASSES = {
    "Ahead", "Bed", "Bridge", "Compute", "Crew", "Guard", "Lanes", "Ledger", "Note", "Numbers", "Place", "Player",
    "Pulse", "Replica", "Seat", "Side", "Surroundings", "Tally", "Turns", "Workplace",
}  # fmt: skip
FORMER_MODULES = {
    "ahead", "bed", "bridge", "compute", "crew", "gate", "generators", "guard", "inventory", "lanes", "layers",
    "numbers", "owner", "parts", "place", "player", "probe", "pulse", "replica", "replies", "scored", "scorer",
    "shapes", "shares", "surroundings", "tally", "turns", "untouched", "warehouse", "whole",
}  # fmt: skip


def files() -> Iterator[Path]:
    for source in SOURCES:
        yield from sorted(source.rglob("*.py"))


def classes() -> Iterator[tuple[str, str]]:
    """(name, file) of every class, also of those inside functions."""
    for path in files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield node.name, path.relative_to(ROOT).as_posix()


def test_no_class_name_means_two_things() -> None:
    found = defaultdict(list)
    for name, where in classes():
        found[name].append(where)
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_no_class_or_module_has_a_former_name() -> None:
    assert [f"{where}: {name}" for name, where in classes() if name in FORMER_CLASSES] == []
    named = [path for path in files() if {path.stem, path.parent.name} & FORMER_MODULES]
    assert [path.relative_to(ROOT).as_posix() for path in named] == []


def test_no_import_gives_another_class_a_former_name() -> None:
    wrong = [
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {alias.asname}"
        for path in files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if alias.asname in FORMER_CLASSES | FORMER_MODULES
    ]
    assert wrong == []
