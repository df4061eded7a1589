"""Processes that end with the one that started them, however that one ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ramet import processes
from ramet.processes import OWNER, TAG, ProcessReaper, end_with_owner, ownership, when_ended

WAITS = "input()"  # a program that ends when its input is closed


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits to be killed."""
    with subprocess.Popen([sys.executable, "-S", "-c", WAITS], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def running(pid: int) -> bool:
    """Whether it is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    ends_at = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


def read_pid(file: Path) -> int:
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
    return int(file.read_text())


@pytest.mark.parametrize("with_pidfd", [True, False])
def test_the_end_of_a_process_is_noticed(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, with_pidfd: bool
) -> None:
    if not with_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.setattr(processes, "POLL_S", 0.01)
    ended, late = threading.Event(), threading.Event()
    when_ended(other.pid, ended.set)
    assert not ended.wait(0.1)
    other.kill()
    other.wait()
    assert ended.wait(10)
    when_ended(other.pid, late.set)
    assert late.wait(10)


def test_a_process_without_an_owner_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OWNER, raising=False)
    with pytest.raises(KeyError, match=OWNER):
        end_with_owner()
    assert ownership() == {OWNER: str(os.getpid())}


FOLLOWER = """
import os, pathlib, sys, time
from ramet.processes import end_with_owner
end_with_owner()
file = pathlib.Path(sys.argv[1])
file.with_suffix(".new").write_text(f"{os.getpid()}\\n")
file.with_suffix(".new").rename(file)
time.sleep(600)
"""
BETWEEN = """
import pathlib, subprocess, sys, time
file, follower = sys.argv[1:]
child = subprocess.Popen([sys.executable, "-c", follower, file])
time.sleep(600)
"""
WAITS_FOR_PARENT = """
import signal, sys, threading
from ramet.processes import end_by_parent_alone
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number + 100))
end_by_parent_alone()
print("ready", flush=True)
threading.Event().wait()
"""
OWNS = """
import os, subprocess, sys
from ramet.processes import ownership
folder, between, follower = sys.argv[1:]
child = [sys.executable, "-c", between, f"{folder}/far", follower]
far = subprocess.Popen(child, env={**os.environ, **ownership()})
near = subprocess.Popen([sys.executable, "-c", follower, f"{folder}/near"], env={**os.environ, **ownership()})
print(far.pid, flush=True)
input()
"""


@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="needs sigwaitinfo")
def test_a_sigterm_counts_only_if_the_parent_sends_it() -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS_FOR_PARENT], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        for _ in range(2):
            subprocess.run(["kill", "-TERM", str(process.pid)], check=True)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.2)
        process.terminate()
        assert process.wait(20) == signal.SIGTERM + 100  # its own handler was called


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_children_and_their_children_end_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNS, str(tmp_path), BETWEEN, FOLLOWER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pids = [int(owner.stdout.readline()), read_pid(tmp_path / "near"), read_pid(tmp_path / "far")]
        assert all(map(running, pids))
        owner.kill()
    wait_until(lambda: not any(map(running, pids)))


def test_a_process_whose_owner_has_ended_already_ends_alone(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What has become its parent meanwhile has nothing to do with it."""
    other.kill()
    other.wait()
    environment = {**os.environ, OWNER: str(other.pid)}
    follower = subprocess.Popen([sys.executable, "-c", FOLLOWER, str(tmp_path / "pid")], env=environment)
    assert follower.wait(20) == -9


STALE = """
import sys
from ramet import processes
processes._ancestors_below = lambda owner: [int(sys.argv[1])]
starts = iter(["10"])
processes._started = lambda pid: next(starts, "20")
processes.end_with_owner()
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_process_that_has_got_the_id_of_one_between_is_not_killed(other: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", WAITS], stdin=subprocess.PIPE) as owner:
        command = [sys.executable, "-c", STALE, str(other.pid)]
        environment = {**os.environ, OWNER: str(owner.pid)}
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as follower:
            assert follower.stdout is not None and follower.stdout.readline()
            owner.kill()
            assert follower.wait(20) == -9
    assert other.poll() is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_without_pidfd_a_zombie_has_ended(other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.setattr(processes, "POLL_S", 0.01)
    ended = threading.Event()
    when_ended(other.pid, ended.set)
    other.kill()
    assert ended.wait(10)


REAPED = """
import subprocess, sys
from ramet.processes import ProcessReaper
reaper = ProcessReaper()
sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
with reaper.tagging():
    tagged = subprocess.Popen(sleeper, start_new_session=True)
with open(f"{sys.argv[1]}/log", "w") as log:
    writer = subprocess.Popen(sleeper, stdout=log, start_new_session=True)
free = subprocess.Popen(sleeper, start_new_session=True)
reaper.watch_folder(sys.argv[1])
print(tagged.pid, writer.pid, free.pid, reaper._process.pid, flush=True)
input()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_reaper_kills_what_belongs_to_it_when_its_owner_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", REAPED, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        tagged, writer, free, helper = map(int, owner.stdout.readline().split())
        assert running(tagged) and running(writer) and running(helper)
        owner.kill()
    try:
        wait_until(lambda: not (running(tagged) or running(writer) or running(helper)))
        assert running(free), "it is none of the reaper's"
    finally:
        os.kill(free, 9)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_reaper_that_is_asked_to_kills_at_once_and_ends() -> None:
    reaper = ProcessReaper()
    with reaper.tagging():
        tagged = subprocess.Popen([sys.executable, "-S", "-c", WAITS], stdin=subprocess.PIPE)
    assert TAG not in os.environ
    reaper.reap()
    assert tagged.wait(10) == -9
    assert reaper._process.poll() == 0
