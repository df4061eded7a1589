"""One process per run directory. The kernel keeps the lock (`flock`), so it ends with its owner, also after kill -9.

The file's text (host, pid, start) names the owner in messages, and distinguishes a lock that a forked child of a dead
owner still has from one whose owner is alive.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

logger = logging.getLogger(__name__)
LOOK_S = 0.2  # how long `acquire` waits for processes that only look, as `is_held` does


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    host: str
    pid: int
    started: str  # ISO time, UTC
    namespace: str  # of process ids: containers may share the host's name but not its processes

    @classmethod
    def me(cls) -> Owner:
        started = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(host=socket.gethostname(), pid=os.getpid(), started=started, namespace=_namespace())

    @property
    def dead(self) -> bool:
        """Whether the process is known to have ended; one that this process cannot see counts as alive."""
        if self.host != socket.gethostname() or self.namespace != _namespace():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # it is alive and belongs to another user
            return False
        return False


class RunLock:
    """The lock of one run directory, held until `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock, also from a dead owner. Raises `ConfigError`, which names the owner, for one in use, and where
        the system has no `flock`.
        """
        fcntl = self._locks()
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                if self._take(file, fcntl):
                    return
            except BaseException:
                os.close(file)
                raise
            os.close(file)

    def release(self) -> None:
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = None

    def _locks(self) -> ModuleType:
        try:
            import fcntl
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"run directory {str(self.path.parent)!r}: runs are locked by flock, which the system {sys.platform!r} "
                "does not have; use WSL2 or a Linux container (docs/supported.md#platforms)"
            ) from error
        return fcntl

    def _take(self, file: int, fcntl: ModuleType) -> bool:
        """Take the lock: True if this process has it now, False to try again with a new file."""
        try:
            _flock(file, fcntl)
        except BlockingIOError as error:
            owner = _read(file)
            if owner is None or not owner.dead:
                raise ConfigError(self._in_use(owner)) from error
            self._unlink(file)  # a child that the dead owner forked has the old file
            return False
        owner = _read(file)
        if not self._is_current(file):
            return False
        if owner is not None and owner.host != socket.gethostname():  # its kernel may not share locks with this one
            raise ConfigError(f"{self._in_use(owner)}; if that process is dead, delete {self.path}")
        if owner is not None:
            logger.warning(
                "taking over %s: its owner (pid %d, started %s) is dead", self.path, owner.pid, owner.started
            )
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(asdict(Owner.me())).encode(), 0)
        self._file = file
        return True

    def _is_current(self, file: int) -> bool:
        """Whether no other process replaced the file between opening and locking it."""
        try:
            return os.fstat(file).st_ino == os.stat(self.path).st_ino
        except FileNotFoundError:
            return False

    def _unlink(self, file: int) -> None:
        if self._is_current(file):
            self.path.unlink(missing_ok=True)

    def _in_use(self, owner: Owner | None) -> str:
        who = "another process" if owner is None else f"pid {owner.pid} on {owner.host}, started {owner.started}"
        return f"run directory {str(self.path.parent)!r} is in use by {who}; choose another run.name, or wait for it"


def _flock(file: int, fcntl: ModuleType) -> None:
    """Take the kernel's lock, and wait for `LOOK_S` where the file names no owner. Raises `BlockingIOError`."""
    until = time.monotonic() + LOOK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if _read(file) is not None or time.monotonic() > until:
                raise
        time.sleep(LOOK_S / 20)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock in this file; only reads. One of another host, whose kernel may not share locks
    with this one, counts as held until it is released, as `acquire` has it; so does one that cannot be opened.
    """
    try:
        import fcntl

        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return True
    except (OSError, ModuleNotFoundError):  # no lock, or a system without it, where no run is
        return False
    try:
        owner = _read(file)
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return owner is None or not owner.dead
    finally:
        os.close(file)
    return owner is not None and owner.host != socket.gethostname()


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:  # no Linux, or no /proc
        return ""


def _read(file: int) -> Owner | None:
    try:
        return Owner(**json.loads(os.pread(file, 4096, 0)))
    except (ValueError, TypeError):  # empty, or torn by a kill
        return None
