"""The zygote: a clean interpreter, exec'd once, that forks slots on demand and outlives none of its clients.

Why exec and not fork: a forked client would carry its environment, its heap and its open files into every program.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from importlib.util import find_spec
from typing import Any, NoReturn

from . import child, isolation, namespaces, processes, scratch, slot, warm, wire

HEARTBEAT_MS = 2000  # how often the zygote looks for a client that vanished while others keep its socket
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def main() -> None:
    """Arguments: folder of this package, number of the control socket."""
    control = socket.socket(fileno=int(sys.argv[2]))
    sys.path.remove(sys.argv[1])
    settings = wire.receive(control)
    if settings is None:
        return
    processes.become_subreaper()
    os.environ.clear()
    os.umask(0o022)  # a program's own user reads the folders that are made for it
    key = "preload"
    try:
        modules = _preload(settings["preload"])
        key = "error"
        confined, readable = _isolate(settings, modules)
        processes.keep_memory_closed()
    except Exception as error:
        wire.send(control, {key: f"{type(error).__name__}: {error}"})
        return
    limits = child.Limits(**settings["limits"])
    limits = limits._replace(address_space=limits.address_space + _own_size())
    gc.collect()
    gc.freeze()
    wire.send(
        control, {"level": confined.level, "way": confined.way, "missing": confined.missing, "preloaded": modules}
    )
    Zygote(control, settings["folder"], limits, confined, readable, settings["keeps"]).run()


def _preload(names: list[str] | None) -> list[str]:
    """Import these modules; None: those that most programs use, where they are installed. Returns their names."""
    os.environ.update(dict.fromkeys(THREADS, "1"))  # read once, at import
    modules = [name for name in warm.COMMON if find_spec(name)] if names is None else names
    for name in modules:
        importlib.import_module(name)
    warm.use(modules)
    os.environ.clear()
    return modules


def _isolate(settings: dict[str, Any], modules: list[str]) -> tuple[isolation.Found, list[str]]:
    """The level that this host allows, and what programs may read."""
    readable = isolation.keep_importable(modules)
    folder = os.path.join(settings["folder"], "try")
    os.chmod(settings["folder"], 0o711)  # programs with a separate user must get through to their folder
    os.mkdir(folder, 0o700)
    try:
        return isolation.find(settings["isolation"], folder, readable, keeps=settings["keeps"]), readable
    finally:
        scratch.remove(folder)


def _own_size() -> int:
    """Bytes of address space: they count against the limit of every child."""
    with open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


class Zygote:
    """Forks one slot for every socket that arrives on `control`."""

    def __init__(
        self,
        control: socket.socket,
        folder: str,
        limits: child.Limits,
        confined: isolation.Found,
        readable: list[str],
        keeps: bool,
    ) -> None:
        self.control, self.folder, self.limits = control, folder, limits
        self.found, self.readable, self.keeps = confined, readable, keeps
        self.client = os.getppid()
        self.slots: dict[int, str] = {}  # process -> its folder
        self.started = 0
        self.woken, wake = os.pipe()
        for end in (self.woken, wake):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake)
        self.wake = wake

    def run(self) -> None:
        """Serve until the control socket ends or the client is not the parent any more."""
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(self.woken, select.POLLIN)
        try:
            while os.getppid() == self.client:
                ready = {descriptor for descriptor, _ in poller.poll(HEARTBEAT_MS)}
                if self.woken in ready:
                    os.read(self.woken, 1 << 16)
                self._tidy()
                if self.control.fileno() in ready and not self._start_slot():
                    return
        finally:
            processes.kill_children(patience_s=10.0)
            scratch.remove(self.folder)

    def _start_slot(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self.control, 1, 1)
        if not message:
            return False
        client = socket.socket(fileno=descriptors[0])
        folder = os.path.join(self.folder, str(self.started))
        self.started += 1
        pid = os.fork()
        if pid == 0:
            self._be_slot(client, folder)
        self.slots[pid] = folder
        client.close()
        return True

    def _be_slot(self, client: socket.socket, folder: str) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self.woken, self.wake):
                os.close(end)
            self.control.close()
            has_user = self.found.way in (isolation.NAMESPACES, isolation.OWN_USER)
            user = isolation.own_user() if has_user else None
            if self.found.way == isolation.NAMESPACES:
                self._separate(client, folder, user)
                folder = namespaces.SCRATCH
            confinement = child.Confinement(level=self.found.level, user=user, keeps=self.keeps)
            slot.SlotServer(
                client, folder, self.limits, confinement, self.readable if self.found.has_landlock else None
            ).serve()
        except BaseException:
            traceback.print_exc()  # on the client's standard error, which programs never see
        finally:
            os._exit(0)

    def _separate(self, client: socket.socket, folder: str, user: int | None) -> None:
        """Return in the first process of new namespaces; this one waits for its end."""
        os.makedirs(folder, 0o700)
        namespaces.leave()
        pid = os.fork()
        if pid != 0:
            client.close()
            os.waitpid(pid, 0)
            os._exit(0)
        processes.die_with_parent(0)  # who is outside these namespaces has no number here
        place = namespaces.scratch(keeps=self.keeps)
        namespaces.build_root(folder, self.readable, place, user, self.limits.scratch)

    def _tidy(self) -> None:
        """Reap slots that ended, remove their folders, and kill what programs left to us when their slot died."""
        while processes.has_children():
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            folder = self.slots.pop(pid, None)
            if folder is not None:
                scratch.remove(folder)
        processes.kill_children(spare=frozenset(self.slots))
