"""Sees to it that nothing of a Ray cluster of our own outlives the driver that started it, however that one ended.

Ray ends most of its processes with the driver, but some of its agents stay for a minute or more, and a stopped actor
cannot end itself. A process that the driver starts beside them waits for the driver's end, which closes its standard
input, and then kills what belongs to the cluster: what carries its mark in the environment, as tools' processes do, or
writes to its log folder, as all of Ray's do, which overwrite their environment with their titles.

Run as a script: `guard.py MARK`. Lines of its input are the log folder, and an empty one for "now".
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "RAMET_RAY_MARK"
PATIENCE_S = 3.0  # what can end by itself does so within it


class ProcessReaper:
    """The driver's side. Processes that are started inside `marking` are in its charge."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C and a hang-up are for the driver
        )

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        os.environ[VARIABLE] = self.mark
        try:
            yield
        finally:
            del os.environ[VARIABLE]

    def tell(self, folder: str) -> None:
        """Where the cluster writes its logs."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder}\n".encode())
        self._process.stdin.flush()

    def sweep(self) -> None:
        """Kill what is left now, and end."""
        self._process.communicate(b"\n")


def members(mark: str, folder: str, driver: int) -> list[int]:
    """Processes of the cluster, without the driver and this one."""
    wanted = f"{VARIABLE}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (driver, os.getpid()):
            with contextlib.suppress(OSError):  # it ended meanwhile, or is somebody else's
                if wanted in (entry / "environ").read_bytes().split(b"\0") or _writes_to(entry, folder):
                    found.append(int(entry.name))
    return found


def _writes_to(process: Path, folder: str) -> bool:
    return bool(folder) and any(os.readlink(one).startswith(f"{folder}/") for one in (process / "fd").iterdir())


def main() -> None:
    driver, folder, now = os.getppid(), "", False
    while not now and (line := sys.stdin.readline()):
        folder, now = line.strip() or folder, line == "\n"
    if not now:  # end of file: the driver is gone
        time.sleep(PATIENCE_S)
    while left := members(sys.argv[1], folder, driver):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
