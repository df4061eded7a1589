"""Processes that watch another one. Needs no vLLM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from ramet.engines.vllm.parent_watch import VARIABLE, end_with_parent, watch


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits to be killed."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_the_end_of_a_process_is_noticed(other: subprocess.Popen[bytes]) -> None:
    gone, late = threading.Event(), threading.Event()
    watch(other.pid, gone.set)
    assert not gone.wait(0.05)
    other.kill()
    assert gone.wait(10)
    other.wait()
    watch(other.pid, late.set)
    assert late.is_set()


def test_a_process_of_vllm_ends_with_its_parent(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(other.pid))
    monkeypatch.setattr(os, "getppid", lambda: other.pid)  # this one must live on
    follower = os.fork()
    if follower == 0:
        end_with_parent()
        time.sleep(60)
        os._exit(0)
    other.kill()
    _, status = os.waitpid(follower, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
