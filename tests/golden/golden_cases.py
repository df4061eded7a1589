"""Files of golden values become cases: what a function of the reference was given, and what it gave back.

Four forms: `{"cases": […]}` and `{"scenarios": […]}` in one JSON object, rows with `function` in JSON lines, and rows
with `code` and `expect` (programs for the sandbox).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOLERANCE = 1e-6  # of numbers, absolute or relative
HOSTILE = "hostile_snippets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    function: str
    where: str  # file and position in it
    input: Any
    output: Any
    raises: bool = False  # the reference raised instead of returning


class BadFile(Exception):
    """A file that is in none of the forms."""


def read_cases(path: Path) -> list[Case]:
    """All cases of a file, in order. Raises `BadFile`."""
    try:
        return list(_lines(path) if path.suffix == ".jsonl" else _object(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadFile(f"{path}: not a file of golden values: {type(error).__name__}: {error}") from error


def _object(path: Path) -> Iterator[Case]:
    content = json.loads(path.read_text(encoding="utf-8"))
    for number, case in enumerate(content["scenarios"] if "scenarios" in content else content["cases"], start=1):
        where = f"{path.name}, case {number}"
        if "scenario" in case:
            yield _scenario(case, where)
        else:
            yield _case(case, where)


def _scenario(case: dict[str, Any], where: str) -> Case:
    """What is given is each step without its result; what comes back is all of it."""
    steps = [{key: value for key, value in step.items() if key != "result"} for step in case["steps"]]
    return Case(
        function=f"rollout.{case['algorithm']}",
        where=f"{where} ({case['scenario']})",
        input={"config": case["config"], "steps": steps},
        output=[step["result"] for step in case["steps"]],
    )


def _lines(path: Path) -> Iterator[Case]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        row, where = json.loads(line), f"{path.name}, line {number}"
        if "function" in row:
            yield _case(row, where)
        else:
            yield Case(function=HOSTILE, where=f"{where} ({row['name']})", input=row["code"], output=row["expect"])


def _case(row: dict[str, Any], where: str) -> Case:
    note = f" ({row['note']})" if row.get("note") else ""
    given = row.get("output")
    raises = bool(row.get("raises")) or (isinstance(given, dict) and set(given) == {"raises"})
    output = None if raises else row["output"]
    return Case(function=row["function"], where=where + note, input=row["input"], output=output, raises=raises)


def difference(found: Any, expected: Any, path: str = "output") -> str | None:
    """Where and how `found` differs from `expected`, None if they agree."""
    if isinstance(expected, dict):
        return _of_mappings(found, expected, path)
    if isinstance(expected, list):
        return _of_lists(found, expected, path)
    if type(found) is type(expected) and found == expected:
        return None
    number = _number(expected)
    if number is not None and isinstance(found, int | float) and not isinstance(found, bool) and _close(found, number):
        return None
    return f"{path} is {found!r:.120}, expected {expected!r:.120}"


def _of_mappings(found: Any, expected: dict[str, Any], path: str) -> str | None:
    if not isinstance(found, dict) or found.keys() != expected.keys():
        return f"{path} has {sorted(found) if isinstance(found, dict) else found!r:.120}, expected {sorted(expected)}"
    return next((d for key in expected if (d := difference(found[key], expected[key], f"{path}.{key}"))), None)


def _of_lists(found: Any, expected: list[Any], path: str) -> str | None:
    if not isinstance(found, list) or len(found) != len(expected):
        return f"{path} is {found!r:.120}, expected a list of {len(expected)}"
    pairs = enumerate(zip(found, expected, strict=True))
    return next((d for i, (one, other) in pairs if (d := difference(one, other, f"{path}[{i}]"))), None)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and value not in ("nan", "inf", "-inf"):
        return None
    return float(value)


def _close(found: float, expected: float) -> bool:
    if math.isnan(expected):
        return math.isnan(found)
    return math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
