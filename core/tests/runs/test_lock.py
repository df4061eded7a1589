"""One process per run directory."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.errors import ConfigError
from ramet.runs.lock import Owner, RunLock, is_held
from ramet.runs.run_dir import RunDir

HOLDER = """
import os, sys, time
from ramet.runs.run_dir import RunDir
run = RunDir.open(sys.argv[1], "mine")
if "fork" in sys.argv:
    child = os.fork()
    if child == 0:
        time.sleep(60)
    print(child, flush=True)
print("held", flush=True)
time.sleep(60)
"""


def hold(root: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root), *arguments], stdout=subprocess.PIPE, text=True
    )  # the caller reads "held"


def test_another_process_is_refused_until_the_owner_is_killed(tmp_path: Path):
    owner = hold(tmp_path)
    assert owner.stdout is not None and owner.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match=f"in use by pid {owner.pid} "):
        RunDir.open(tmp_path, "mine")
    owner.kill()
    owner.wait()
    owner.stdout.close()
    RunDir.open(tmp_path, "mine").close()


def test_a_lock_that_only_a_child_of_a_dead_owner_holds_is_taken_over(tmp_path: Path):
    owner = hold(tmp_path, "fork")
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    try:
        assert owner.stdout.readline() == "held\n"
        owner.kill()
        owner.wait()
        with RunDir.open(tmp_path, "mine"):
            with pytest.raises(ConfigError, match="in use by pid"):
                RunDir.open(tmp_path, "mine")
    finally:
        os.kill(child, signal.SIGKILL)
        owner.stdout.close()


def test_a_lock_of_another_host_is_not_taken_over(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    owner = {"host": "elsewhere", "pid": 1, "started": "2026-01-01T00:00:00+00:00", "namespace": ""}
    (tmp_path / "mine/LOCK").write_text(json.dumps(owner))
    with pytest.raises(ConfigError, match=r"pid 1 on elsewhere.*if that process is dead, delete"):
        RunDir.open(tmp_path, "mine")


def test_a_torn_lock_file_is_taken_over(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/LOCK").write_text('{"host": "el')
    with RunDir.open(tmp_path, "mine"):
        assert json.loads((tmp_path / "mine/LOCK").read_text())["pid"] == os.getpid()


def test_an_owner_is_dead_only_if_this_host_knows_it():
    me = Owner.me()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not me.dead
    assert replace(me, pid=gone.pid).dead
    assert not replace(me, pid=gone.pid, host="elsewhere").dead
    assert not replace(me, pid=gone.pid, namespace="another container").dead


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "letter").write_text("")
    (tmp_path / "mine/LOCK").symlink_to(tmp_path / "letter")
    with pytest.raises(ConfigError, match=rf"^run directory '{tmp_path}/mine' has .* \(LOCK\)"):
        RunDir.open(tmp_path, "mine")
    assert (tmp_path / "letter").read_text() == ""


def test_a_directory_in_use_is_refused_and_names_its_owner(tmp_path: Path):
    with RunDir.open(tmp_path, "mine"):
        with pytest.raises(ConfigError) as caught:
            RunDir.open(tmp_path, "mine")
    assert f"is in use by pid {os.getpid()} on {socket.gethostname()}, started 20" in str(caught.value)
    RunDir.open(tmp_path, "mine").close()


def test_a_process_that_looks_at_a_lock_does_not_stop_a_start(tmp_path: Path):
    (tmp_path / "LOCK").write_text("")
    file = os.open(tmp_path / "LOCK", os.O_RDONLY)
    fcntl.flock(file, fcntl.LOCK_SH)
    ends = threading.Timer(0.05, os.close, [file])
    ends.start()
    lock = RunLock(tmp_path / "LOCK")
    lock.acquire()
    ends.join()
    assert is_held(tmp_path / "LOCK")
    lock.release()


def test_a_lock_that_cannot_be_opened_counts_as_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    assert not is_held(tmp_path / "LOCK")
    monkeypatch.setattr("os.open", refuse)
    assert is_held(tmp_path / "LOCK")
