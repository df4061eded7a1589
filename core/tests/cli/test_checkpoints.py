"""`ramet checkpoints RUN` on folders that were really written, broken and left over."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ramet.cli import main
from ramet.policy.checkpoint.store import Checkpoints


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """runs/mine with the checkpoints of steps 1, 2 and 3, and what a killed save of step 4 left."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs/mine"
    (folder / "checkpoints").mkdir(parents=True)
    checkpoints = Checkpoints(folder / "checkpoints", keep=3)
    for step in (1, 2, 3):
        checkpoints.save(step, lambda to: (to / "weights.bin").write_bytes(b"x" * 1200) and None)
    torn = folder / "checkpoints/.tmp_step_000004_77"
    torn.mkdir()
    (torn / "weights.bin").write_bytes(b"x")
    os.utime(torn, (0, 0))
    return folder


def break_step(run: Path, step: int) -> Path:
    file = run / f"checkpoints/step_{step:06d}/weights.bin"
    file.write_bytes(b"y" * file.stat().st_size)
    return file


def test_every_checkpoint_and_leftover_is_listed_and_the_one_for_a_resume_marked(run: Path, capsys):
    before = sorted(run.rglob("*"))
    assert main(["checkpoints", "mine"]) == 0
    header, *rows, last = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "STEP", "SIZE", "WRITTEN", "STATE"]
    assert [row.split()[:2] for row in rows] == [
        ["step_000001", "1"], ["step_000002", "2"], ["step_000003", "3"], [".tmp_step_000004_77", "4"]
    ]  # fmt: skip
    assert [row.split("  ")[-1] for row in rows[1:]] == [
        "verified", "verified, taken by a resume", "left by a killed save, or being written"
    ]  # fmt: skip
    assert "1.34 kB" in rows[0] and "  1 B  " in rows[3]
    assert last == "a resume continues after step 3"
    assert sorted(run.rglob("*")) == before, "looking changes nothing"


def test_a_broken_checkpoint_is_named_with_its_reason_and_the_one_before_it_is_taken(run: Path, capsys):
    file = break_step(run, 3)
    assert main(["checkpoints", str(run)]) == 0
    out = capsys.readouterr().out
    assert f"  {file}: its content " in out
    assert "BROKEN" in next(line for line in out.splitlines() if line.startswith("step_000003"))
    assert out.endswith("a resume continues after step 2\n")


def test_it_takes_the_checkpoint_that_a_resume_takes(run: Path, capsys):
    break_step(run, 3)
    (run / "checkpoints/step_000002/MANIFEST.json").write_text("")
    main(["checkpoints", "mine", "--json"])
    [taken] = [entry["step"] for entry in json.loads(capsys.readouterr().out) if entry["resume"]]
    newest = Checkpoints(run / "checkpoints", keep=3).newest()
    assert newest is not None and newest.step == taken == 1


def test_json_says_the_same_for_machines(run: Path, capsys):
    break_step(run, 1)
    assert main(["checkpoints", "mine", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [(e["name"], e["step"], e["leftover"], e["resume"], len(e["problems"])) for e in entries] == [
        ("step_000001", 1, False, False, 1), ("step_000002", 2, False, False, 0), ("step_000003", 3, False, True, 0),
        (".tmp_step_000004_77", 4, True, False, 0),
    ]  # fmt: skip
    assert all(e["size"] > 0 and "T" in e["written"] for e in entries)


def test_the_exit_code_is_1_if_none_verifies(run: Path, capsys):
    for step in (1, 2, 3):
        break_step(run, step)
    assert main(["checkpoints", "mine"]) == 1
    assert capsys.readouterr().out.endswith("no checkpoint that verifies; a resume begins at the first step\n")
    assert main(["checkpoints", "mine", "--json"]) == 1
    capsys.readouterr()
    for folder in (run / "checkpoints").iterdir():
        folder.rename(run / folder.name)
    assert main(["checkpoints", "mine"]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 1, "no table of nothing"


def test_what_is_no_run_is_the_users_mistake(tmp_path: Path, run: Path, capsys):
    (tmp_path / "runs/other").mkdir()
    assert main(["checkpoints", "other"]) == main(["checkpoints", "nope"]) == main(["checkpoints"]) == 1
    err = capsys.readouterr().err
    assert "not the directory of a run: it has no folder checkpoints/" in err
    assert "neither a directory nor a name " in err and "which run?" in err
