"""How ranks are started and watched, with shell scripts instead of Python, which start at once."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from ramet.errors import InfraError
from ramet.runs.stopped import StopListener, Stopped
from ramet.sft.launch import RankProcesses


def ranks(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 20.0) -> RankProcesses:
    """Two ranks that run this script."""
    program = folder / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    made = RankProcesses(2, timeout_s)
    made.start(folder / "task", None)
    return made


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('[ "$RANK" = 0 ] && sleep 60 || exit 3', "of 2 ranks rank 1 ended with exit code 3; .*stopped: 0"),
        ('[ "$RANK" = 1 ] && sleep 60 || kill -SEGV $$', "of 2 ranks rank 0 died of SIGSEGV"),
        ('[ "$RANK" = 1 ] && kill -KILL $$ || exit 1', "rank 1 was killed by SIGKILL, as the kernel does when memory"),
    ],
)
def test_the_rank_that_failed_first_is_named_with_its_cause(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = ranks(script, tmp_path, monkeypatch)
    try:
        with pytest.raises(InfraError, match=said):
            started.watch(StopListener())
    finally:
        started.kill()


def test_ranks_that_are_not_ready_in_time_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = ranks("sleep 60", tmp_path, monkeypatch, timeout_s=0.5)
    begin = time.monotonic()
    try:
        with pytest.raises(InfraError, match=r"were not ready within cluster\.timeout_s=0\.5: 0, 1"):
            started.watch(StopListener())
    finally:
        started.kill()
    assert time.monotonic() - begin < 20


def test_a_signal_is_passed_on_and_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signals = StopListener()
    started = ranks("trap 'exit 143' TERM; sleep 60 & wait", tmp_path, monkeypatch)
    signals.signal = signal.SIGINT
    time.sleep(0.5)  # for the scripts to set their trap
    try:
        with pytest.raises(Stopped, match="SIGINT") as stopped:
            started.watch(signals)
    finally:
        started.kill()
    assert stopped.value.code == 130


def test_what_other_ranks_print_has_their_number_in_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = ranks('[ "$RANK" = 0 ] || echo "loading $WORLD_SIZE"', tmp_path, monkeypatch)
    started.watch(StopListener())
    started.kill()
    assert capsys.readouterr().err == "[rank 1] loading 2\n"
