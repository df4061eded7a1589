"""What the table of levels in `docs/security.md` says is what programs find: each row is tried at each setting."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from ramet_tools_python.inside.processes import MAX_THREADS

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "security.md"
NOBODY = 65534
TRIED_ELSEWHERE = {
    "run longer than its time": "test_limits.py::test_signals_cannot_hold_a_program_up",
    "write unbounded text": "test_limits.py::test_output_is_cut_with_a_mark_and_a_flood_is_stopped",
    "start threads": "test_promises.py::test_threads_are_bounded_and_that_is_the_programs_own_failure",
    "forge its result": "test_hostile.py::test_hostile_snippets_are_contained",
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """`column` of the table. `user` 0: the one that runs the tests. `deny`: what the host refuses."""

    column: str
    isolation: str = "auto"
    user: int = 0
    deny: tuple[str, ...] = ()

    @property
    def needs_root(self) -> bool:
        return bool(self.user or self.deny)

    @property
    def is_root(self) -> bool:
        return not self.user and os.geteuid() == 0


SETTINGS = {
    **{f"{level}": Setting(column=f"{level}", isolation=f"{level}") for level in range(3)},
    **{f"{level}, ordinary": Setting(column=f"{level}", isolation=f"{level}", user=NOBODY) for level in range(3)},
    "1, no CLONE_PARENT": Setting(column="1", isolation="1", user=NOBODY, deny=("CLONE_PARENT",)),
    "3, own user": Setting(column="3, own user", deny=("unshare",)),
    "3, namespaces": Setting(column="3, namespaces"),
    "3, namespaces, ordinary": Setting(column="3, namespaces", user=NOBODY),
    "3, no Landlock": Setting(column="3, namespaces", user=NOBODY, deny=("landlock_create_ruleset",)),
}
ADMITS = [name for name, setting in SETTINGS.items() if setting.user or setting.column == "3, own user"]


def table() -> dict[str, dict[str, str]]:
    """Row -> column -> cell."""
    lines = [line.strip("|\n").split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    start = next(number for number, cells in enumerate(lines) if cells[0].strip() == "a program can …")
    columns = [cell.strip() for cell in lines[start][1:]]
    rows = {}
    for cells in lines[start + 2 :]:
        if len(cells) != len(columns) + 1:
            break
        rows[cells[0].strip()] = dict(zip(columns, (cell.strip() for cell in cells[1:]), strict=True))
    return rows


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[str, Any]]:
    """Of all settings that this user can make."""
    names = [name for name, setting in SETTINGS.items() if os.geteuid() == 0 or not setting.needs_root]
    asked = json.dumps([asdict(SETTINGS[name]) for name in names])
    command = [sys.executable, str(HERE / "promises_runner.py"), asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd="/")
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(names, json.loads(done.stdout), strict=True))


def report_of(name: str, reports: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if name not in reports:
        pytest.skip(f"only root can try {name}")
    setting, report = SETTINGS[name], reports[name]
    level, _, way = setting.column.partition(", ")
    if str(report["level"]) != level or (way and report["way"] != way):
        pytest.skip(f"this host does not allow {name}: {report['missing']}")
    if report["way"] == "root":
        pytest.skip(f"this host does not allow programs a user of their own: {report['missing']}")
    return report


def promises(cell: str, *, is_root: bool) -> bool:
    return re.match(r"no\b", cell) is not None or (is_root and "as root no" in cell)


def passed(report: dict[str, Any], row: str) -> list[tuple[str, int]]:
    """Where (with variables kept or not, number of the probe) a program did what the row says."""
    found = report["found"]
    key = next(key for key in found["call"] if row.startswith(key))
    return [(state, number) for state in found for number, error in enumerate(found[state][key]) if error is None]


def probed() -> list[str]:
    return [row for row in table() if not row.startswith(tuple(TRIED_ELSEWHERE))]


@pytest.mark.parametrize("name", SETTINGS)
def test_programs_cannot_do_what_the_table_denies(name: str, reports: dict[str, dict[str, Any]]) -> None:
    report, setting, rows = report_of(name, reports), SETTINGS[name], table()
    denied = [row for row in probed() if promises(rows[row][setting.column], is_root=setting.is_root)]
    assert len(denied) >= 4
    assert {row: ways for row in denied if (ways := passed(report, row))} == {}


@pytest.mark.parametrize("name", ADMITS)
def test_programs_can_do_what_the_table_admits(name: str, reports: dict[str, dict[str, Any]]) -> None:
    """So the probes are able to."""
    report, setting, rows = report_of(name, reports), SETTINGS[name], table()
    cells = {row: rows[row][setting.column] for row in probed()}
    admitted = [row for row, cell in cells.items() if not promises(cell, is_root=False) and "host allows" not in cell]
    assert [row for row in admitted if not passed(report, row)] == []


@pytest.mark.parametrize("name", SETTINGS)
def test_threads_are_bounded_and_that_is_the_programs_own_failure(
    name: str, reports: dict[str, dict[str, Any]]
) -> None:
    for status, started in report_of(name, reports)["threads"]:
        assert status == "thread_limit" or (status == "ok" and int(started) <= MAX_THREADS)


def test_each_row_is_tried_here_or_in_a_test_that_is_there(reports: dict[str, dict[str, Any]]) -> None:
    keys = [*next(iter(reports.values()))["found"]["call"], *TRIED_ELSEWHERE]
    assert [[key for key in keys if row.startswith(key)] for row in table()] == [[key] for key in in_order(keys)]
    for place in TRIED_ELSEWHERE.values():
        file, _, test = place.partition("::")
        assert f"def {test}(" in (HERE / file).read_text(encoding="utf-8")


def in_order(keys: list[str]) -> list[str]:
    """Of the rows that begin with them; each has one."""
    return sorted(keys, key=lambda key: next(number for number, row in enumerate(table()) if row.startswith(key)))
