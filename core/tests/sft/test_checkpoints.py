"""`ramet checkpoints` of SFT runs that were really trained, killed, broken and finished."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.cli import main
from ramet.sft.checkpoints import SftLayout, newest_complete, step_of


@pytest.fixture(scope="module")
def finished(sft_run: Callable[..., Path]) -> Path:
    """24 steps, checkpoints at 8 and 16."""
    return sft_run("finished")


@pytest.fixture
def stopped(finished: Path, tmp_path: Path) -> Path:
    """The same run before it was finished."""
    run = tmp_path / "stopped"
    shutil.copytree(finished, run)
    (run / "sft.json").unlink()
    return run


def states(printed: str) -> dict[str, str]:
    """Name -> state, of the table's rows."""
    rows = [line for line in printed.splitlines() if line.startswith("checkpoint-")]
    return {row.split()[0]: row.split("  ")[-1] for row in rows}


def test_checkpoints_of_sft_are_verified_and_the_one_for_a_resume_is_marked(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(stopped.rglob("*"))
    assert main(["checkpoints", str(stopped)]) == 0
    out = capsys.readouterr().out
    assert states(out) == {"checkpoint-8": "verified", "checkpoint-16": "verified, taken by a resume"}
    assert out.splitlines()[-1] == "a resume continues after step 16"
    assert step_of(newest_complete(stopped / "checkpoints")) == 16, "and so it does"
    assert sorted(stopped.rglob("*")) == before, "looking changes nothing"


def test_a_broken_one_is_named_with_its_reason_and_the_one_before_it_is_taken(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = stopped / "checkpoints/checkpoint-16/optimizer.pt"
    file.write_bytes(file.read_bytes()[:100])
    assert main(["checkpoints", str(stopped)]) == 0
    out = capsys.readouterr().out
    assert states(out) == {"checkpoint-8": "verified, taken by a resume", "checkpoint-16": "BROKEN"}
    assert f"  {file.parent}: BadZipFile: File is not a zip file" in out.splitlines()
    assert out.splitlines()[-1] == "a resume continues after step 8"


def test_what_a_killed_save_left_is_called_so(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (8, 16):
        (stopped / f"checkpoints/checkpoint-{step}/trainer_state.json").unlink()
    assert main(["checkpoints", str(stopped), "--json"]) == 1
    entries = json.loads(capsys.readouterr().out)
    assert [(one["step"], one["leftover"], one["resume"], one["problems"]) for one in entries] == [
        (8, True, False, []), (16, True, False, []),
    ]  # fmt: skip
    assert main(["checkpoints", str(stopped)]) == 1
    out = capsys.readouterr().out
    assert states(out)["checkpoint-16"].startswith("left by a killed save")
    assert out.splitlines()[-1].startswith(f"{stopped}: no checkpoint that verifies")


def test_a_finished_training_is_called_so(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(finished)]) == 0
    out = capsys.readouterr().out
    assert states(out) == {"checkpoint-8": "verified", "checkpoint-16": "verified"}
    assert out.splitlines()[-1] == (
        f"{finished}: finished after 24 steps, model in {finished / 'model'}; the same command leaves it as it is"
    )


def test_files_that_cannot_be_read_are_named(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = stopped / "checkpoints/layout.json"
    layout.write_text("{")
    assert main(["checkpoints", str(stopped)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {layout}: does not say how the checkpoints were written: ")
    assert len(SftLayout().check(layout.parent)) == 1
    layout.unlink()
    (stopped / "sft.json").write_text("[]")
    assert main(["checkpoints", str(stopped)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {stopped / 'sft.json'}: not a summary of a training: ")
