"""The hostile snippets are contained at the levels that each names: as root, as an ordinary user, without namespaces.

What a run needs and this host does not allow is skipped by name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

RUNNER = Path(__file__).with_name("hostile_runner.py")
SNIPPETS = Path(__file__).resolve().parents[3] / "tests" / "golden" / "values" / "hostile_snippets.jsonl"
NOBODY = 65534
LIMIT_S, WALL_FACTOR = 1.0, 3.0  # of the runner; a program that gets no processor has until the second
SLOW_START_S = 0.5  # what a busy machine may add to the time of a program


@dataclass(frozen=True)
class Run:
    """`lowest`: only snippets that name at least this level, since the others are played in another run, too."""

    isolation: str = "auto"
    user: int = 0  # 0: the one that runs the tests
    deny: bool = False  # namespaces
    level: int = 3
    way: str = ""
    lowest: int = 0

    @property
    def snippets(self) -> list[dict[str, Any]]:
        """Those that this run must contain, and whose libraries are installed."""
        rows = [json.loads(line) for line in SNIPPETS.read_text(encoding="utf-8").splitlines()]
        absent = [name for name in ("numpy", "sympy") if find_spec(name) is None]
        return [
            row
            for row in rows
            if self.lowest <= row["expect"].get("min_level", 0) <= self.level
            and not any(name in row["code"] for name in absent)
        ]

    def play(self, names: list[str]) -> dict[str, Any]:
        asked = {
            "snippets": str(SNIPPETS), "names": names, "isolation": self.isolation, "user": self.user,
            "deny": self.deny,
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, str(RUNNER), json.dumps(asked)], capture_output=True, text=True, timeout=300, cwd="/"
        )
        assert done.returncode == 0, done.stderr[-3000:]
        report: dict[str, Any] = json.loads(done.stdout)
        return report


RUNS = {
    "level 3, as the user of the tests": Run(way="namespaces"),
    "level 3, as an ordinary user": Run(user=NOBODY, way="namespaces"),
    "level 3, as root where namespaces are forbidden": Run(deny=True, way="own user", lowest=1),
    "level 2, as an ordinary user where namespaces are forbidden": Run(user=NOBODY, deny=True, level=2),
    "level 1": Run(isolation="1", level=1, lowest=1),
    "level 0": Run(isolation="0", level=0),
}


@pytest.mark.parametrize("name", RUNS)
def test_hostile_snippets_are_contained(name: str) -> None:
    run = RUNS[name]
    if os.geteuid() != 0 and (run.user or run.deny):
        pytest.skip(f"only root can try {name}")
    report = run.play([snippet["name"] for snippet in run.snippets])
    if report["level"] < run.level or run.way not in ("", report["way"]):
        pytest.skip(f"this host does not allow {name}: {report['missing']}")
    problems = {snippet["name"]: found for snippet in run.snippets if (found := _problems(report["outcomes"], snippet))}
    if problems:  # a busy machine: once more, by themselves
        again = run.play(list(problems))["outcomes"]
        problems = {s["name"]: found for s in run.snippets if s["name"] in problems and (found := _problems(again, s))}
    assert problems == {}
    assert report["level"] == run.level
    assert_nothing_is_left(report)


def assert_nothing_is_left(report: dict[str, Any]) -> None:
    assert report["scratch"] == [] and not report["strays"]
    assert report["canary"] == ["canary.sock", "canary.txt", "canary_dir"] and report["canary_text"] == "CANARY"
    before, after = report["pool"]
    assert after["processes"] <= before["processes"]
    assert after["memory_mb"] <= before["memory_mb"] + 30


def _problems(outcomes: dict[str, list[dict[str, Any]]], snippet: dict[str, Any]) -> list[str]:
    return [problem for outcome in outcomes[snippet["name"]] for problem in _problems_of(outcome, snippet["expect"])]


def _problems_of(outcome: dict[str, Any], expect: dict[str, Any]) -> list[str]:
    problems = []
    if "status" in expect and outcome["status"] not in expect["status"]:
        problems.append(f"status {outcome['status']}, allowed {expect['status']}; {outcome['err'][-300:]}")
    if "rc" in expect and outcome["rc"] != expect["rc"]:
        problems.append(f"rc {outcome['rc']}")
    for stream in ("out", "err"):
        text = outcome[stream]
        problems += [f"{stream} lacks {part!r}" for part in expect.get(f"{stream}_has", []) if part not in text]
        problems += [f"{stream} holds {part!r}" for part in expect.get(f"{stream}_lacks", []) if part in text]
        if len(text) > expect.get(f"{stream}_max", len(text)):
            problems.append(f"{stream} is {len(text)} long")
    if expect.get("truncated") and not outcome["truncated"]:
        problems.append("not marked as truncated")
    within = WALL_FACTOR * LIMIT_S + expect.get("within_s", 20.0) + SLOW_START_S
    if outcome["took"] > within:
        problems.append(f"took {outcome['took']:.2f} s, allowed {within} s")
    return problems if outcome["alive"] == "alive" else [*problems, f"then the tool said {outcome['alive']!r}"]
