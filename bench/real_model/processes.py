"""A side's process with all that it started: their memory and CPU time, and steps by request."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from shape import PREFIX, Settings

EVERY_S = 0.2  # between two looks at memory, at least
LOOKING = 0.02  # of the time at most: at 15 GB a look takes 0.1 s of a core, and holds up the process's page faults
TICKS = os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """Return the ids of a process and its descendants."""
    parents = {int(entry.name): _stat(int(entry.name))[1] for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == str(pid)]
    return found


def cpu_s(root: int) -> float:
    """Return the CPU time of all processes, ended children included."""
    return sum(sum(map(int, _stat(pid)[11:15])) for pid in tree(root)) / TICKS


def pss_bytes(root: int) -> int:
    """Return the proportional set size of all processes: pages that several share count once in the sum."""
    return sum(_pss_kb(pid) for pid in tree(root)) * 1024


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the name: state, parent, ...; zeros if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 20


def _pss_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it is gone
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


class PeakMemory:
    """The most that a process and its descendants take, from now until `end`."""

    def __init__(self, root: int) -> None:
        self.bytes = 0
        self._root = root
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def end(self) -> None:
        self._ended.set()
        self._watcher.join()

    def _watch(self) -> None:
        pause = EVERY_S
        while not self._ended.wait(pause):
            began = time.perf_counter()
            self.bytes = max(self.bytes, pss_bytes(self._root))
            pause = max(EVERY_S, (time.perf_counter() - began) / LOOKING)


class SideProcess:
    """Started, and blocked until its first step."""

    def __init__(self, command: list[str], settings: Settings, log: Path) -> None:
        self._log = log.open("w", encoding="utf-8")
        variables = {
            "OMP_NUM_THREADS": str(settings.threads),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self._process = subprocess.Popen(
            [*command, settings.text()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **variables},
        )
        self._memory = PeakMemory(self._process.pid)
        self.versions = self._read()

    def step(self, tool_s: float | None) -> dict[str, Any]:
        """Run one step; returns what the side reports, with its CPU time and its highest memory since the start."""
        assert self._process.stdin is not None
        before = cpu_s(self._process.pid)
        self._process.stdin.write(json.dumps({"tool_s": tool_s}) + "\n")
        self._process.stdin.flush()
        reported = self._read()
        return {**reported, "cpu_s": cpu_s(self._process.pid) - before, "peak_gb": self._memory.bytes / 1e9}

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._memory.end()
        self._log.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(PREFIX):
                content: dict[str, Any] = json.loads(line.removeprefix(PREFIX))
                return content
        self._memory.end()
        raise RuntimeError(f"it ended with code {self._process.wait()}; see {self._log.name}")
