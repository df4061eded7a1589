"""Folders of processes: removed at their end, and after kill -9 by the next process."""

from __future__ import annotations

import errno
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ramet.io.process_folder import process_folder

HOLD = """
import sys
from ramet.io.process_folder import process_folder
with process_folder("ramet-test-") as folder:
    (folder / "work").mkdir()
    (folder / "work/file").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_folders_of_killed_processes_are_removed_and_those_of_running_ones_stay(temporary: Path) -> None:
    killed, running = (
        subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    )
    with killed, running:
        assert killed.stdout is not None and running.stdout is not None
        dead, alive = (Path(process.stdout.readline().strip()) for process in (killed, running))
        other = temporary / "ramet-other-1"
        other.mkdir()
        killed.kill()
        killed.wait()
        assert (dead / "work/file").exists()
        with process_folder("ramet-test-") as own:
            assert not dead.exists() and (alive / "work/file").exists() and other.exists()
            assert own.stat().st_mode & 0o777 == 0o700 and list(own.iterdir()) == []
        assert not own.exists()
    assert running.returncode == 0 and not alive.exists()


def test_links_are_not_followed(temporary: Path) -> None:
    """Another user of the machine can make names in the folder of temporary files."""
    kept = temporary / "kept"
    kept.mkdir()
    (temporary / "ramet-test-link").symlink_to(kept)
    with process_folder("ramet-test-"):
        assert kept.exists()


def test_a_file_system_without_locks_costs_only_the_removal_of_what_others_left(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOSYS, "no locks")

    left = temporary / "ramet-test-left"
    left.mkdir()
    monkeypatch.setattr("fcntl.flock", refused)
    with process_folder("ramet-test-") as folder:
        assert folder.is_dir() and folder != left
    assert not folder.exists() and left.exists()
