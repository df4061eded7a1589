"""What may be removed from runs, and what never is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from core.tests.history.made_runs import write_checkpoints, write_training

from ramet.errors import ConfigError
from ramet.history.prune import removable, removable_of, remove
from ramet.history.summary import list_runs
from ramet.runs.lock import RunLock


def write_old(file: Path) -> None:
    """Write a file, and give it and its folder the times of an hour that is over."""
    file.write_text("half")
    for path in (file, file.parent):
        os.utime(path, (1e9, 1e9))


def names(run: Path) -> list[str]:
    return [item.path.name for item in removable_of(run)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run whose second of four checkpoints is the best, with files of its own, of users and of kills."""
    folder = write_training(tmp_path, "mine", [0.5] * 4)
    write_checkpoints(folder, {1: 0.1, 2: 0.9, 3: 0.2, 4: 0.3})
    (folder / "model").mkdir()
    (folder / "model/model.safetensors").write_text("weights")
    (folder / "services/rewards.judge").mkdir(parents=True)
    (folder / "services/rewards.judge/verdicts.sqlite").write_text("paid for")
    (folder / "checkpoints/step_000000").mkdir()  # of a user: without a manifest
    (folder / "notes.txt").write_text("mine")
    (folder / "rollouts/step_000001.jsonl.gz").write_text("record")
    return folder


def test_checkpoints_of_a_finished_run_but_the_newest_and_the_best_are_old(run: Path) -> None:
    assert names(run) == ["step_000001", "step_000003"]
    assert all(item.why == "old checkpoint" and item.size > 1000 for item in removable_of(run))


def test_what_killed_writers_left_may_go_and_nothing_else_is_touched(run: Path) -> None:
    write_old(run / ".metrics.jsonl.0123abcd.tmp")
    write_old(run / "rollouts/.step_000002.jsonl.gz.0123abcd.tmp")
    for folder in (".model.0123abcd.tmp", "checkpoints/.tmp_step_000005_77", "checkpoints/.step_000001.0123abcd.old"):
        (run / folder).mkdir()
        write_old(run / folder / "weights")
    (run / ".mine.tmp").write_text("of a user")
    (run / "checkpoints/.tmp_step_000009_1").symlink_to(run / "model")
    before = {path for path in run.rglob("*") if not path.is_dir()}
    listed = removable(run.parent)
    assert remove(run, listed) == listed
    gone = {path.relative_to(run).as_posix() for path in before if not (path.is_symlink() or path.exists())}
    assert gone == {
        ".metrics.jsonl.0123abcd.tmp", "rollouts/.step_000002.jsonl.gz.0123abcd.tmp", ".model.0123abcd.tmp/weights",
        "checkpoints/.tmp_step_000005_77/weights", "checkpoints/.step_000001.0123abcd.old/weights",
        *(f"checkpoints/step_00000{step}/{file}" for step in (1, 3)
          for file in ("weights.bin", "MANIFEST.json", "SCORE.json")),
    }  # fmt: skip
    assert removable(run.parent) == []


def test_a_broken_newest_checkpoint_does_not_cost_the_one_before(run: Path) -> None:
    (run / "checkpoints/step_000004/weights.bin").write_text("cut")
    assert names(run) == ["step_000001"], "a resume would take the third"


def test_checkpoints_of_a_run_that_did_not_finish_stay(tmp_path: Path) -> None:
    run = write_training(tmp_path, "cut", [0.5], error=KeyboardInterrupt())
    write_checkpoints(run, {1: 0.1, 2: 0.2})
    (run / ".model.0123abcd.tmp").mkdir()
    write_old(run / ".model.0123abcd.tmp/weights")
    assert names(run) == [".model.0123abcd.tmp"]


def test_temporary_files_of_live_writers_stay(run: Path) -> None:
    (run / ".report.html.0123abcd.tmp").write_text("half")
    (run / ".model.0123abcd.tmp").mkdir()
    write_old(run / ".model.0123abcd.tmp/config.json")
    (run / ".model.0123abcd.tmp/model.safetensors").write_text("half")
    assert names(run) == ["step_000001", "step_000003"]


def test_checkpoints_that_cannot_be_verified_stay(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_old(run / ".metrics.jsonl.0123abcd.tmp")

    def without_package(folder: Path) -> None:
        raise ModuleNotFoundError("No module named 'safetensors'")

    monkeypatch.setattr("ramet.history.prune.list_checkpoints", without_package)
    assert names(run) == [".metrics.jsonl.0123abcd.tmp"]
    assert "its checkpoints stay" in caplog.text


def test_a_running_run_is_left_alone_also_if_it_began_after_the_list_was_made(run: Path) -> None:
    listed = removable_of(run)
    lock = RunLock(run / "LOCK")
    lock.acquire()
    try:
        assert removable_of(run) == []
        with pytest.raises(ConfigError, match="is in use"):
            remove(run, listed)
    finally:
        lock.release()
    assert all(item.path.exists() for item in listed)


def test_links_are_not_followed(run: Path, tmp_path: Path) -> None:
    (run / "checkpoints").rename(tmp_path / "elsewhere")
    (run / "checkpoints").symlink_to(tmp_path / "elsewhere")
    assert names(run) == []


def test_a_run_that_a_link_leads_to_is_listed_once_and_nothing_of_it_is_removed(run: Path, tmp_path: Path) -> None:
    runs = tmp_path / "linked"
    runs.mkdir()
    for name in ("a", "b"):
        (runs / name).symlink_to(run)
    assert [summary.name for summary in list_runs(runs)] in (["a"], ["b"])
    assert removable(runs) == []
    (tmp_path / "again").symlink_to(run)
    assert [summary.name for summary in list_runs(tmp_path)] == ["mine"]
    assert [item.path.parent.parent for item in removable(tmp_path)] == [run, run]


def test_a_folder_of_rollouts_that_is_a_link_is_not_followed(run: Path, tmp_path: Path) -> None:
    (run / "rollouts").rename(tmp_path / "elsewhere")
    write_old(tmp_path / "elsewhere/.step_000002.jsonl.gz.0123abcd.tmp")
    (run / "rollouts").symlink_to(tmp_path / "elsewhere")
    assert names(run) == ["step_000001", "step_000003"]
