"""F24: the clock jumps by an hour back and a day ahead. Deadlines do not see it; steps are ordered by their number."""

from __future__ import annotations

import ast
import itertools
import os
import time
from pathlib import Path

import pytest

from ramet.policy.checkpoint.store import Checkpoints
from ramet.report.data import overview

ROOT = Path(__file__).resolve().parents[2]
HOUR_S, DAY_S = 3600.0, 86400.0
LABELS = {
    "cli/runs.py",
    "tracking/jsonl.py",
    "tracking/run_log.py",
    "rollout/gateway/session.py",  # when a reply was made, as clients expect it
    "runs/lock.py",
    "runs/manifest.py",
    "runs/run_dir.py",
}  # shown, never compared
DATES = {  # of others: Retry-After names a date, and an entry of a cache has an age that outlives processes
    "helpers/http.py",
    "history/prune.py",  # files of other processes that changed within the hour stay
    "ramet_tools_bing/cache.py",
    "ramet_tools_bing/service.py",
    "ramet_tools_bing/fetch/pages.py",
}


@pytest.fixture
def jumping_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks what time it is gets another answer each time: now, an hour ago, tomorrow, 1970, and so on."""
    steady = time.time
    jumps = itertools.cycle([0.0, -HOUR_S, DAY_S, DAY_S - steady(), 2 * DAY_S, HOUR_S, -DAY_S])
    monkeypatch.setattr(time, "time", lambda: steady() + next(jumps))


def test_a_run_is_the_same_whatever_the_clock_says(workspace, jumping_clock, monkeypatch):
    """F24."""
    workspace.train("jumping", steps=3)
    monkeypatch.undo()
    workspace.train("steady", steps=3)
    times = [line["time"] for line in workspace.metrics("jumping")]
    assert times != sorted(times), "the clock did go back"
    assert [line["step"] for line in workspace.metrics("jumping")] == [1, 2, 3]
    assert all(line["rollout/masked_share"] == 0 for line in workspace.metrics("jumping"))
    for step in (1, 2, 3):
        assert workspace.sampled("jumping", step) == workspace.sampled("steady", step)
    assert all(0 <= line["time/step_s"] < 60 for line in workspace.metrics("jumping"))
    [training] = overview(workspace.runs / "jumping")["sections"]
    assert all(curve["x"] == sorted(curve["x"]) for curve in training["curves"])


def test_a_hanging_call_ends_by_its_deadline_although_the_clock_goes_back(workspace, jumping_clock):
    """F24."""
    started = time.monotonic()
    hanging = ["tools.fault_tool.params.straggler=/1", "tools.fault_tool.timeout_s=0.3", "tools.fault_tool.retries=0"]
    workspace.train("hanging", *hanging, "rollout.max_masked_share=1", steps=1)
    assert time.monotonic() - started < 60
    masked = [r["id"] for group in workspace.records("hanging", 1) for r in group["rollouts"] if r["fault"]]
    assert masked == ["1", "1", "1"]


def test_a_run_resumes_after_its_last_step_whatever_the_times_of_its_files_say(workspace):
    """F24: the checkpoint of the highest number counts, not the one that was touched last."""
    workspace.train("touched", steps=2)
    run = workspace.runs / "touched"
    os.utime(run / "checkpoints/step_000001", (time.time() + DAY_S,) * 2)
    os.utime(run / "checkpoints/step_000002", (0.0, 0.0))
    newest = Checkpoints(run / "checkpoints", keep=3).newest()
    assert newest is not None and newest.step == 2
    workspace.train("touched", steps=3)
    assert [line["step"] for line in workspace.metrics("touched")] == [1, 2, 3]


def test_the_clock_on_the_wall_is_read_for_labels_only():
    """F24: everything that waits or measures uses the monotonic clock."""
    readers = set()
    for package in (ROOT / "core/src/ramet", *ROOT.glob("plugins/*/src")):
        for path in package.rglob("*.py"):
            calls = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
            if any(ast.unparse(call) in ("time.time", "time.time_ns", "datetime.now") for call in calls):
                readers.add(str(path.relative_to(package)))
    assert readers <= LABELS | DATES
