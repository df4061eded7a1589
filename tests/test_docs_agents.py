"""AGENTS.md is true: its hooks, kinds and names are those of the code. Its paths: tests/test_docs_paths.py."""

from __future__ import annotations

import re
from pathlib import Path

import ramet
from ramet.plugins import hookspecs
from ramet.scaffold.kinds import KINDS

PAGE = (Path(__file__).resolve().parents[1] / "AGENTS.md").read_text(encoding="utf-8")


def test_the_hooks_of_the_page_are_those_of_the_contract() -> None:
    assert set(re.findall(r"`(register_\w+)`", PAGE)) == {
        name for name in vars(hookspecs) if name.startswith("register_")
    }


def test_the_kinds_of_the_page_are_those_that_are_written() -> None:
    listed = PAGE.partition("ramet new tool count_words")[2].partition("cd ramet")[0]
    assert set(re.findall(r"\w+", listed)) - {"or"} == set(KINDS) - {"tool"}


def test_what_the_page_imports_from_ramet_is_there() -> None:
    names = ("option", "function_tool", "run_blocking", "Score", "Stateful", "ConfigError", "ToolError", "InfraError")
    assert [name for name in names if f"`{name}" not in PAGE or not hasattr(ramet, name)] == []


def test_the_contract_fits_on_a_screen() -> None:
    contract = PAGE.partition("## The contract")[2].partition("## Where")[0]
    assert len(contract.splitlines()) <= 40
