"""What the quickstarts differ in: the data, and a tool that misleads, which a model that uses its tool must follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramet import Benchmark, Tool


def unchanged(tool: Tool) -> Tool:
    return tool


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickstartKind:
    """Functions that take a folder get the one with the data."""

    name: str  # of the recipe, and of the run
    benchmark: str
    skill: str  # what the policy has to learn, in words
    habit: str  # what SFT teaches it to do instead, in words
    calls: int  # of the tool, that a right answer takes
    use: str  # so many calls, in words
    sizes: Mapping[str, Any] = field(default_factory=dict)  # of the model, and its template, for `make_tiny_model`
    sft_rows: int
    least_forks: float  # per group, in each step while it learns
    write: Callable[[Path, Benchmark, int, int], None]  # the data: folder, benchmark, rows of SFT, seed
    inputs: Callable[[Path], list[str]]  # overrides: where the tool finds its data
    test: Callable[[Path], list[str]]  # overrides: where the benchmark finds the held-out problems
    misleading: str  # the tool that misleads, in words
    mislead: Callable[[Path], list[str]]  # overrides that make the tool mislead
    misled_tool: Callable[[Tool], Tool] = unchanged  # or another tool in its place
    said: Callable[[str], str]  # the answer that a tool result gives
