"""Summaries of run directories."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from core.tests.evaluate.test_results import HEADER, played, score
from core.tests.history.made_runs import write_training

from ramet.errors import ConfigError
from ramet.evaluate.header import SCHEMA
from ramet.evaluate.partial import PartialResults
from ramet.history.summary import list_runs, summarise_run
from ramet.runs.lock import RunLock
from ramet.runs.manifest import read_manifest, write_manifest


def test_a_run_is_summarised_by_its_last_step_its_plan_and_how_it_ended(tmp_path: Path) -> None:
    finished = summarise_run(write_training(tmp_path, "whole", [0.25, 0.5], "train.steps=2", valid={2: 0.75}))
    assert (finished.name, finished.job, finished.state) == ("whole", "train", "finished")
    assert (finished.done, finished.planned, finished.result, finished.valid) == (2, 2, 0.5, 0.75)
    failed = summarise_run(write_training(tmp_path, "bad", [0.25], error=ValueError("x")))
    assert (failed.state, failed.done, failed.planned) == ("failed", 1, 10), "40 tasks that fit, 4 a step"
    drawn = ("train.budget=contrast", "train.budget_tasks=8")
    assert summarise_run(write_training(tmp_path, "spread", [0.5], *drawn)).planned == 5, "8 are drawn a step"
    assert summarise_run(write_training(tmp_path, "cut", [], error=KeyboardInterrupt())).state == "stopped"
    assert finished.size == sum(file.stat().st_size for file in finished.path.rglob("*") if file.is_file())


def test_a_run_is_running_while_its_lock_is_held_and_killed_without_a_note_of_its_end(tmp_path: Path) -> None:
    run = write_training(tmp_path, "mine", [0.5])
    manifest = read_manifest(run / "manifest.json")
    manifest.attempts[-1].status, manifest.attempts[-1].ended = "running", None
    write_manifest(run / "manifest.json", manifest)
    assert summarise_run(run).state == "killed"
    lock = RunLock(run / "LOCK")
    lock.acquire()
    assert summarise_run(run).state == "running"
    lock.release()
    elsewhere = {"host": "elsewhere", "pid": 1, "started": "2026-11-27T00:00:00+00:00", "namespace": ""}
    (run / "LOCK").write_text(json.dumps(elsewhere))
    assert summarise_run(run).state == "running", "locks of another host's kernel are not seen here"


def test_an_evaluation_counts_tasks_and_has_its_first_metric_as_score(tmp_path: Path) -> None:
    run = write_training(tmp_path, "measured", [])
    manifest = read_manifest(run / "manifest.json")
    manifest.job = "eval"
    write_manifest(run / "manifest.json", manifest)
    partial = PartialResults(run / "results.json", HEADER)
    partial.add(*played("a", [0, 1], [score(1.0), score(0.0)]))
    running = summarise_run(run)
    assert (running.done, running.planned, running.result) == (1, None, None)
    partial.finish()
    finished = summarise_run(run)
    assert (finished.done, finished.planned, finished.result, finished.row()["score"]) == (1, 1, 0.5, 0.5)


def test_results_are_found_from_another_folder_than_the_job_was_started_in(tmp_path: Path) -> None:
    run = write_training(tmp_path / "runs", "measured", [])
    manifest = read_manifest(run / "manifest.json")
    manifest.job = "eval"
    write_manifest(run / "manifest.json", manifest)
    (run / "config.yaml").write_text("run: {root: runs, name: measured, out: out/res.json}")
    (tmp_path / "out").mkdir()
    for out in (tmp_path / "out/res.json", run / "results.json"):
        partial = PartialResults(out, HEADER)
        partial.add(*played("a", [0, 1], [score(1.0), score(0.0)]))
        partial.finish()
        assert summarise_run(run).result == 0.5
        out.unlink()


def test_odd_files_cost_their_own_run_at_most(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_training(tmp_path, "whole", [0.5])
    for name, text in {"env": "train: {steps: '${oc.env:STEPS}'}", "number": "train: 3", "list": "train: [1]"}.items():
        (write_training(tmp_path, name, [0.5]) / "config.yaml").write_text(text)
    ended = read_manifest(write_training(tmp_path, "ended", [0.5]) / "manifest.json")
    ended.attempts[-1].ended = "yesterday"
    write_manifest(tmp_path / "ended/manifest.json", ended)
    for name, results in {"empty": [{"metrics": []}], "none": None}.items():
        manifest = read_manifest(write_training(tmp_path, name, []) / "manifest.json")
        manifest.job = "eval"
        write_manifest(tmp_path / name / "manifest.json", manifest)
        (tmp_path / name / "results.json").write_text(json.dumps({"schema": SCHEMA, "results": results}))
    planned = {summary.name: summary.planned for summary in list_runs(tmp_path)}
    assert planned == {"whole": 10, "env": None, "number": None, "list": None}
    assert all(f"{name}: left out: " in caplog.text for name in ("ended", "empty", "none"))


def test_runs_are_listed_newest_first_with_stages_of_pipelines_and_without_what_is_broken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, ended in (("old", "2026-11-20T10:00:00+00:00"), ("new", "2026-11-21T10:00:00+00:00")):
        run = write_training(tmp_path, name, [0.5])
        manifest = read_manifest(run / "manifest.json")
        manifest.attempts[-1].ended = ended
        write_manifest(run / "manifest.json", manifest)
    write_training(tmp_path / "whole_way", "rl", [0.5])
    broken = write_training(tmp_path, "broken", [0.5])
    (broken / "manifest.json").write_text("{")
    os.makedirs(tmp_path / "sweeps/2026-11-27")
    assert [summary.name for summary in list_runs(tmp_path)] == ["whole_way/rl", "new", "old"]
    assert "broken: left out" in caplog.text
    assert [summary.name for summary in list_runs(tmp_path / "new")] == ["new"]
    with pytest.raises(ConfigError, match="no folder"):
        list_runs(tmp_path / "gone")
