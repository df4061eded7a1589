"""Files that are replaced at once."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ramet.io.atomic import finish_removals, open_atomic, remove_folder, sync_tree, temporary_folder, write_file

WRITER = """
import os, signal, sys
from pathlib import Path
from ramet.io.atomic import open_atomic

with open_atomic(Path(sys.argv[1])) as file:
    file.write(b"new" * 100_000)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_with_its_folders(tmp_path: Path):
    write_file(tmp_path / "a/b/notes.txt", "Grüße\n")
    write_file(tmp_path / "a/b/bytes", b"\xff")
    assert (tmp_path / "a/b/notes.txt").read_text(encoding="utf-8") == "Grüße\n"
    assert (tmp_path / "a/b/bytes").read_bytes() == b"\xff"
    assert names(tmp_path / "a/b") == ["bytes", "notes.txt"]


def test_a_kill_in_the_middle_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "state.json"
    write_file(path, "old")
    killed = subprocess.run([sys.executable, "-c", WRITER, str(path)], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    [torn] = [name for name in names(tmp_path) if name != path.name]
    assert torn.startswith(".state.json.") and torn.endswith(".tmp")
    write_file(path, "new")
    assert path.read_text() == "new"


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path: Path):
    path = tmp_path / "state.json"
    write_file(path, "old")
    with open_atomic(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_block_that_raises_leaves_the_old_file_and_no_temporary_one(tmp_path: Path, error: type[BaseException]):
    path = tmp_path / "state.json"
    write_file(path, "old")
    with pytest.raises(error), open_atomic(path) as file:
        file.write(b"new")
        raise error
    assert path.read_text() == "old"
    assert names(tmp_path) == ["state.json"]


def test_a_failed_write_names_the_file_and_leaves_no_temporary_one(tmp_path: Path):
    path = tmp_path / "state.json"
    write_file(path, "old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))  # as a full disk: the write fails half-way
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_file(path, b"new" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(path) and caught.value.errno == errno.EFBIG
    assert path.read_text() == "old"
    assert names(tmp_path) == ["state.json"]


def test_an_error_of_the_rename_names_the_file_and_keeps_its_class(tmp_path: Path):
    (tmp_path / "state.json").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_file(tmp_path / "state.json", "new")
    assert caught.value.filename == str(tmp_path / "state.json")
    assert names(tmp_path) == ["state.json"]


def test_an_error_about_another_file_is_left_as_it_is(tmp_path: Path):
    with pytest.raises(FileNotFoundError) as caught, open_atomic(tmp_path / "copy") as file:
        file.write((tmp_path / "original").read_bytes())
    assert caught.value.filename == str(tmp_path / "original")
    assert names(tmp_path) == []


def test_permissions_are_those_of_the_umask_or_of_the_file_before(tmp_path: Path):
    path = tmp_path / "state.json"
    with umask(0o022):
        write_file(path, "1")
        assert mode(path) == 0o644
        path.chmod(0o600)
        write_file(path, "2")
        assert mode(path) == 0o600
        path.unlink()
        write_file(path, "3", private=True)
        assert mode(path) == 0o600
    path.chmod(0o644)
    with umask(0o077):
        write_file(path, "4")
        assert mode(path) == 0o600


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path):
    (tmp_path / "letter").write_text("precious")
    (tmp_path / "state.json").symlink_to(tmp_path / "letter")
    write_file(tmp_path / "state.json", "new")
    assert (tmp_path / "letter").read_text() == "precious"
    assert not (tmp_path / "state.json").is_symlink()
    assert (tmp_path / "state.json").read_text() == "new"


def test_a_temporary_folder_is_new_and_next_to_its_target(tmp_path: Path):
    with umask(0o022):
        first, second = (temporary_folder(tmp_path / "runs/model") for _ in range(2))
    assert first != second and first.parent == tmp_path / "runs"
    assert first.name.startswith(".model.") and first.name.endswith(".tmp")
    assert mode(first) == 0o755


def test_everything_in_a_folder_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_text("x")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    sync_tree(tmp_path)
    assert synced == [str(tmp_path / name) for name in ("a/b/file", "a", "a/b")] + [str(tmp_path)]


DELETES = """
import os, signal, sys
from pathlib import Path
from ramet.io.atomic import remove_folder
unlink = os.unlink
def deadly(path, **where):
    unlink(path, **where)
    os.kill(os.getpid(), signal.SIGKILL)
os.unlink = deadly
remove_folder(Path(sys.argv[1]))
"""


def test_a_kill_in_the_middle_of_a_deletion_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "step_000001"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / name).write_text(name)
    assert subprocess.run([sys.executable, "-c", DELETES, str(folder)]).returncode == -signal.SIGKILL
    [half] = tmp_path.iterdir()
    assert re.fullmatch(r"\.step_000001\.[0-9a-f]{8}\.old", half.name) and len(list(half.iterdir())) == 2
    mine = tmp_path / ".mine.0123abcd.old"
    mine.mkdir()
    (tmp_path / ".step_000002.0123abcd.old").symlink_to(mine)
    assert finish_removals(tmp_path, re.compile(r"step_\d+")) == [half]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.0123abcd.old", ".step_000002.0123abcd.old"]


def test_a_folder_is_deleted_whole(tmp_path: Path) -> None:
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "deep" / "file").touch()
    remove_folder(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []
