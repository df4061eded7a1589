from __future__ import annotations

import errno
import json
import logging
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.errors import InfraError
from ramet.policy.checkpoint import store as checkpoint
from ramet.policy.checkpoint.checkpoint_list import list_checkpoints
from ramet.policy.checkpoint.store import (
    MANIFEST,
    Checkpoints,
    CheckpointScore,
    note_hashes,
    verify,
    verify_part,
)
from ramet.policy.errors import CheckpointError


def writer(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "deep").mkdir()
        (folder / "weights.bin").write_text(text * 100)
        (folder / "deep" / "rank_00000.bin").write_text(text)

    return write


def saved(root: Path, steps: int, keep: int = 3) -> Checkpoints:
    checkpoints = Checkpoints(root, keep=keep)
    for step in range(1, steps + 1):
        checkpoints.save(step, writer(str(step)))
    return checkpoints


def folders(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_checkpoint_is_found_again_with_its_step(tmp_path: Path) -> None:
    found = saved(tmp_path / "checkpoints", 2).newest()
    assert found is not None
    assert (found.step, found.folder.name) == (2, "step_000002")
    assert (found.folder / "deep" / "rank_00000.bin").read_text() == "2"
    assert set(json.loads((found.folder / MANIFEST).read_text())["files"]) == {"weights.bin", "deep/rank_00000.bin"}


def test_no_checkpoints_are_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "never", keep=3).newest() is None


def test_the_newest_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, 5, keep=2)
    assert folders(tmp_path) == ["step_000004", "step_000005"]


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (999_999, 1_000_000):
        checkpoints.save(step, writer("x"))
    found = checkpoints.newest()
    assert found is not None and found.step == 1_000_000


def truncate(folder: Path) -> None:
    (folder / "weights.bin").write_text("3")


def flip_a_byte(folder: Path) -> None:
    (folder / "weights.bin").write_text("3" * 99 + "4")


def lose_a_file(folder: Path) -> None:
    (folder / "deep" / "rank_00000.bin").unlink()


def empty_the_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text("")


def lose_the_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def replace_the_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text("[1]")


@pytest.mark.parametrize(
    ("damage", "file", "reason"),
    [
        (truncate, "weights.bin", "1 bytes, the manifest says 100"),
        (flip_a_byte, "weights.bin", "does not match"),
        (lose_a_file, "rank_00000.bin", "missing"),
        (empty_the_manifest, MANIFEST, "not a manifest"),
        (lose_the_manifest, MANIFEST, "not a manifest"),
        (replace_the_manifest, MANIFEST, "not a manifest"),
    ],
)
def test_a_broken_checkpoint_is_skipped_with_file_and_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None], file: str, reason: str
) -> None:
    checkpoints = saved(tmp_path, 3)
    damage(tmp_path / "step_000003")
    with caplog.at_level(logging.WARNING):
        found = checkpoints.newest()
    assert found is not None and found.step == 2
    assert "step_000003" in caplog.text and file in caplog.text and reason in caplog.text


def test_the_checkpoint_just_saved_is_not_pruned_for_newer_broken_ones(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 3, keep=3)
    for step in (2, 3):
        flip_a_byte(tmp_path / f"step_{step:06d}")
    found = checkpoints.newest()
    assert found is not None and found.step == 1
    Checkpoints(tmp_path, keep=1).save(2, writer("again"))
    assert folders(tmp_path) == ["step_000002", "step_000003"]
    found = checkpoints.newest()
    assert found is not None and found.step == 2


def test_keeping_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^keep .* 0$"):
        Checkpoints(tmp_path, keep=0)


def test_what_a_killed_writer_left_is_deleted(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    (tmp_path / ".tmp_step_000002_4711").mkdir()
    (tmp_path / ".tmp_step_000002_4711" / "weights.bin").write_text("half")
    assert checkpoints.newest() is not None
    assert folders(tmp_path) == ["step_000001"]


def test_a_full_disk_leaves_the_old_ones_and_raises_a_typed_error(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 3)

    def fill_the_disk(folder: Path) -> None:
        (folder / "weights.bin").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CheckpointError, match=r"step_000004: not written: .*older checkpoints"):
        checkpoints.save(4, fill_the_disk)
    assert folders(tmp_path) == ["step_000001", "step_000002", "step_000003"]
    assert not verify(tmp_path / "step_000003")


def test_too_little_free_space_is_refused_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved(tmp_path, 1)
    needed = int(1.2 * sum(f.stat().st_size for f in (tmp_path / "step_000001").rglob("*") if f.is_file()))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: usage._replace(free=needed - 1))
    with pytest.raises(CheckpointError, match=f"{needed - 1} bytes free, a checkpoint needs about {needed}"):
        checkpoints.save(2, writer("2"))
    assert folders(tmp_path) == ["step_000001"]
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: usage._replace(free=needed))
    assert checkpoints.save(2, writer("2")).step == 2


def test_a_writer_that_raises_leaves_nothing(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    with pytest.raises(ZeroDivisionError):
        checkpoints.save(2, lambda folder: 1 / 0)
    assert folders(tmp_path) == ["step_000001"]


def test_a_whole_checkpoint_is_not_replaced_and_a_broken_one_is(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 2)
    with pytest.raises(CheckpointError, match="intact checkpoint of this step already"):
        checkpoints.save(2, writer("other"))
    flip_a_byte(tmp_path / "step_000002")
    checkpoints.save(2, writer("other"))
    assert not verify(tmp_path / "step_000002")


def foreign(folder: Path, *files: str) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("precious")


def test_a_foreign_folder_of_a_checkpoints_name_is_renamed_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = saved(tmp_path, 1)
    foreign(tmp_path, "step_000002/weights.bin", "other_step_000002/notes.txt")
    checkpoints.save(2, writer("2"))
    assert folders(tmp_path) == ["other_step_000002", "other_step_000002_1", "step_000001", "step_000002"]
    assert (tmp_path / "other_step_000002_1" / "weights.bin").read_text() == "precious"
    assert caplog.messages == [f"{tmp_path / 'step_000002'}: no checkpoint of Ramet's; renamed to other_step_000002_1"]


def test_a_file_of_a_checkpoints_name_is_renamed_aside(tmp_path: Path) -> None:
    foreign(tmp_path, "step_000001")
    saved(tmp_path, 1)
    assert (tmp_path / "other_step_000001").read_text() == "precious"


def test_foreign_folders_are_never_pruned(tmp_path: Path) -> None:
    foreign(tmp_path, "step_000001/weights.bin", "step_000002/MANIFEST.json")
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (3, 4, 5):
        checkpoints.save(step, writer(str(step)))
    assert folders(tmp_path) == ["step_000001", "step_000002", "step_000005"]


def test_only_what_a_killed_save_can_have_left_is_deleted(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    foreign(tmp_path, ".tmp_step_notes/a", ".tmp_step_000002_old/a", ".tmp_step_000002_17/a")
    (tmp_path / ".tmp_step_000003_17").write_text("a file")
    checkpoints.newest()
    assert folders(tmp_path) == [".tmp_step_000002_old", ".tmp_step_000003_17", ".tmp_step_notes", "step_000001"]


LOOP = """
import sys
from pathlib import Path
from ramet.policy.checkpoint.store import Checkpoints

def state(step):
    return bytes([step % 251]) * 200_000

checkpoints = Checkpoints(Path(sys.argv[1]), keep=2)
found = checkpoints.newest()
step = found.step if found else 0
if found and (found.folder / "a.bin").read_bytes() + (found.folder / "b.bin").read_bytes() != state(step) * 2:
    sys.exit(3)
print(step, flush=True)

def write(folder):
    (folder / "a.bin").write_bytes(state(step))
    (folder / "b.bin").write_bytes(state(step))

while True:
    step += 1
    checkpoints.save(step, write)
    print(step, flush=True)
"""


def test_a_writer_killed_at_any_time_resumes_from_a_whole_checkpoint(tmp_path: Path) -> None:
    rng, before = random.Random(1), 0
    for restart in range(15):
        process = subprocess.Popen([sys.executable, "-c", LOOP, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        resumed = process.stdout.readline()
        assert resumed, f"no restart: exit code {process.wait()}"
        assert int(resumed) >= before
        before = int(resumed)
        if restart == 0:
            assert process.stdout.readline() == "1\n"
        time.sleep(rng.uniform(0.0, 0.12))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert before > 0
    assert Checkpoints(tmp_path, keep=2).newest() is not None


def test_a_checkpoint_stays_whole_when_another_metric_scores_it(tmp_path: Path) -> None:
    """`train.keep_best` may change at a resume, and then the checkpoint that the run goes on from is scored again."""

    def write(folder: Path) -> None:
        writer("1")(folder)
        CheckpointScore(metric="valid/reward", value=0.5).write(folder)

    folder = Checkpoints(tmp_path, keep=1, keep_best="valid/reward").save(1, write).folder
    later = Checkpoints(tmp_path, keep=1, keep_best="valid/other")
    assert later.score(1) is None
    later.add_score(1, CheckpointScore(metric="valid/other", value=0.25))
    assert verify(folder) == []
    assert later.newest() is not None
    assert later.score(1) == CheckpointScore(metric="valid/other", value=0.25)


def test_the_best_is_one_that_verifies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also one that this object wrote, if it was damaged since; one that nobody has touched is not read twice."""
    checkpoints = Checkpoints(tmp_path, keep=1, keep_best="valid/reward")
    for step, value in ((1, 0.5), (2, 0.9), (3, 0.7)):

        def write(folder: Path, value: float = value) -> None:
            writer("3")(folder)
            CheckpointScore(metric="valid/reward", value=value).write(folder)

        checkpoints.save(step, write)
    assert folders(tmp_path) == ["step_000002", "step_000003"]
    best = checkpoints.best(3)
    assert best is not None and best[0].step == 2
    flip_a_byte(tmp_path / "step_000002")
    for reader in (checkpoints, Checkpoints(tmp_path, keep=1, keep_best="valid/reward")):
        caplog.clear()
        best = reader.best(3)
        assert best is not None and (best[0].step, best[1].value) == (3, 0.7)
        assert [record.getMessage() for record in caplog.records] == [
            f"checkpoint step_000002 skipped: {tmp_path / 'step_000002' / 'weights.bin'}: its content does not match "
            "the manifest's hash"
        ]


def test_files_are_hashed_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints, both = saved(tmp_path, 1), threading.Barrier(2, timeout=20)
    digest = checkpoint._sha256

    def hashed(path: Path) -> str:
        both.wait()
        return digest(path)

    monkeypatch.setattr(checkpoint, "_sha256", hashed)
    assert checkpoints.newest() is not None


def written_by(n_ranks: int, root: Path) -> Path:
    """A checkpoint in which each rank has written two files, and the driver one."""

    def write(folder: Path) -> None:
        (folder / "trainer.json").write_text("{}")
        for rank in range(n_ranks):
            names = [f"__{rank}_0.distcp", f"rank_{rank:05d}.pt"]
            for name in names:
                (folder / name).write_text(f"{rank}")
            note_hashes(folder, rank, names)

    return Checkpoints(root, keep=1).save(1, write).folder


@pytest.mark.parametrize(("wrote", "read"), [(4, 4), (64, 32), (3, 2), (2, 5), (1, 3)])
def test_every_file_is_read_by_one_rank_or_by_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrote: int, read: int
) -> None:
    folder, digest, hashed = written_by(wrote, tmp_path), checkpoint._sha256, list[str]()
    monkeypatch.setattr(checkpoint, "_sha256", lambda path: hashed.append(path.name) or digest(path))
    parts = []
    for rank in (None, *range(read)):
        assert verify_part(folder, rank, read) == []
        parts.append(sorted(hashed))
        hashed.clear()
    assert parts[0] == ["trainer.json"]
    assert sorted(name for part in parts for name in part) == sorted(
        path.name for path in folder.iterdir() if path.name != MANIFEST
    )
    assert max(map(len, parts[1:])) == 2 * -(-wrote // read)
    if wrote == 64:
        assert parts[6] == ["__10_0.distcp", "__11_0.distcp", "rank_00010.pt", "rank_00011.pt"]


def test_a_rank_finds_damage_in_its_own_files_and_the_driver_reads_what_no_rank_is_noted_for(tmp_path: Path) -> None:
    folder = written_by(2, tmp_path)
    (folder / "rank_00001.pt").write_text("2")
    [problem] = verify(folder)
    assert problem.endswith("rank_00001.pt: its content does not match the manifest's hash")
    assert [verify_part(folder, rank, 2) for rank in (None, 0, 1)] == [[], [], [problem]]
    files = json.loads((folder / MANIFEST).read_text())["files"]
    for entry in files.values():
        entry.pop("rank", None)  # as earlier versions wrote it
    (folder / MANIFEST).write_text(json.dumps({"files": files}))
    assert [verify_part(folder, rank, 2) for rank in (None, 0, 1)] == [[problem], [], []]


def test_old_checkpoints_stay_where_the_ranks_that_would_read_the_best_are_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def write(folder: Path) -> None:
        writer("1")(folder)
        CheckpointScore(metric="valid/reward", value=0.5).write(folder)

    def lost(folder: Path) -> list[str]:
        raise InfraError("policy rank 1 is lost")

    Checkpoints(tmp_path, keep=1).save(1, write)
    Checkpoints(tmp_path, keep=1, keep_best="valid/reward", verify_with=lost).save(2, writer("2"))
    assert folders(tmp_path) == ["step_000001", "step_000002"]
    assert "old checkpoints not deleted: policy rank 1 is lost" in caplog.text


def test_the_best_is_hashed_once(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        writer("1")(folder)
        CheckpointScore(metric="valid/reward", value=0.5).write(folder)

    Checkpoints(tmp_path, keep=1, keep_best="valid/reward").save(1, write)
    read: list[Path] = []
    later = Checkpoints(
        tmp_path, keep=1, keep_best="valid/reward", verify_with=lambda folder: read.append(folder) or verify(folder)
    )
    for _ in range(3):
        assert later.best(1) is not None
    assert read == [tmp_path / "step_000001"]


def test_what_is_left_of_an_old_one_is_deleted_at_the_start_and_never_listed(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 2)
    (tmp_path / "step_000001").rename(tmp_path / ".step_000001.0123abcd.old")
    (tmp_path / ".step_000001.0123abcd.old" / MANIFEST).unlink()
    assert [entry.name for entry in list_checkpoints(tmp_path)] == ["step_000002"]
    assert checkpoints.newest() is not None
    assert folders(tmp_path) == ["step_000002"]
