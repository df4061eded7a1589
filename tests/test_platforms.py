"""What needs no Linux loads without the modules that only Unix has, and says so where it needs one.

Modules and functions that Windows lacks are taken away from a process (docs/supported.md#platforms).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ramet.cli.commands import COMMANDS
from ramet.rollout.record import GroupRecord, write_records
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.tracking.jsonl import JsonlTracker
from ramet.types import Rollout, StopReason, Task, user_prompt

WITHOUT_MODULES = """
import os, select, signal, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Refuse())
"""
WITHOUT_FUNCTIONS = """
for name in ("fork", "forkpty", "geteuid", "getpgid", "getuid", "killpg", "pidfd_open", "setsid", "sysconf", "waitid"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGPROF", "pthread_sigmask", "setitimer"):
    delattr(signal, name)
del select.poll
"""
COMMAND = """
from ramet.cli import main
sys.exit(main(sys.argv[1:]))
"""
LIGHT = ["--help", "--version", "plugins", "recipes", "train --help", "benchmarks"]


def run(code: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_MODULES + code, *words], cwd=cwd, capture_output=True, text=True, timeout=200
    )


@pytest.mark.parametrize("command", [*LIGHT, *(COMMANDS.keys() & {"demo"})])
def test_a_command_works_without_what_only_unix_has(command: str, tmp_path: Path) -> None:
    ran = run(WITHOUT_FUNCTIONS + COMMAND, *command.split(), cwd=tmp_path)
    assert ran.returncode == 0 and ran.stdout, ran.stderr


def test_components_of_plugins_load_without_what_only_unix_has(tmp_path: Path) -> None:
    modules = "ramet_tools_python.tool, ramet_rewards.math, ramet_tools_bing.fetch.pages, ramet.runs.lock"
    ran = run(f"{WITHOUT_FUNCTIONS}import {modules}", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_a_report_is_made_without_what_only_unix_has(tmp_path: Path) -> None:
    task = Task(id="sums/0", prompt=user_prompt("1+1?"), answer=("2",), data_source="sums")
    rollout = Rollout(id="0", task=task, segments=(), stop=StopReason.ANSWER)
    group = ScoredGroup(task=task, rollouts=(ScoredRollout(rollout=rollout, reward=1.0),))
    (tmp_path / "run" / "rollouts").mkdir(parents=True)
    record = GroupRecord(step=1, group=group, advantages={})
    write_records(tmp_path / "run" / "rollouts" / "step_000001.jsonl.gz", [record])
    JsonlTracker(tmp_path / "run" / "metrics.jsonl").log(1, {"reward/mean": 1.0})
    (tmp_path / "run" / "manifest.json").write_text(json.dumps({"job": "train"}))
    ran = run(WITHOUT_FUNCTIONS + COMMAND, "report", "run", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "run" / "report.html").stat().st_size


def test_a_run_elsewhere_is_one_error_that_names_what_helps(tmp_path: Path) -> None:
    lock = "from pathlib import Path\nfrom ramet.runs.lock import RunLock\nRunLock(Path('LOCK')).acquire()"
    ran = run(lock, cwd=tmp_path)
    assert "ConfigError: run directory '.': runs are locked by flock" in ran.stderr
    assert "WSL2 or a Linux container (docs/supported.md#platforms)" in ran.stderr and not (tmp_path / "LOCK").exists()
