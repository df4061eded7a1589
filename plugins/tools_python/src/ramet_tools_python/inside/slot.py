"""A slot: runs one program after the other for the client, each in a separate process.

The slot owns the deadline, the output and the clean-up. It lives as long as its socket: end-of-file means that the
client is gone or has given up the call, and the slot ends with everything it started.

Where variables are kept, a *state* is a stopped process. A program runs in a copy of it, which becomes the
state if it lives on; a program that is killed leaves the state as it was. Files are not kept, each program has a fresh
folder, and programs of a slot never run at the same time, so two states share nothing.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

from . import child, namespaces, processes, scratch, wire
from .call import DONE, GONE, OUTPUT_LIMIT, Call, status_of
from .nursery import Nursery
from .worker import BrokenWorker, Worker


class SlotServer:
    """`readable`: what programs may read; None: they are not kept from files."""

    def __init__(
        self,
        client: socket.socket,
        folder: str,
        limits: child.Limits,
        confinement: child.Confinement,
        readable: list[str] | None,
    ) -> None:
        self.client, self.folder, self.limits, self.confinement = client, folder, limits, confinement
        self.readable = readable
        self.own_mount = folder == namespaces.SCRATCH
        self.spare: Worker | None = None
        self.states: dict[int, Worker] = {}

    def serve(self) -> None:
        """Answer requests until the client is gone."""
        processes.become_subreaper()
        try:
            self._clean()
            self.nursery = Nursery(self.folder, self.limits, self.confinement, self.readable)
            while True:
                wire.send(self.client, {"ready": True})
                if self.spare is None:
                    self.spare = self._start()
                request = wire.receive(self.client)
                reply = None if request is None else self._answer(request)
                if reply is None:
                    return
                wire.send(self.client, reply)
                self._clean()
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise
        finally:
            self._end()

    def _start(self) -> Worker:
        return Worker.start(self.nursery, self.confinement.keeps)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Answer a request; None if the client is gone."""
        if "drop" in request:
            self._drop(request["drop"])
            return {}
        if "fork" in request:
            return self._fork(request["fork"], request["to"])
        try:
            return self._run(request["code"], request.get("state"))
        except BrokenWorker as error:
            return {"status": "setup_error", "stderr": str(error)}

    def _run(self, code: str, state: int | None) -> dict[str, Any] | None:
        before = None if state is None else self.states.get(state)
        worker = self._take_spare() if before is None else self._copy_or_restart(state, before)
        call = Call(worker, code, self.limits)
        end = call.watch(self.client)
        cpu_s = call.clock.cpu_s()
        if end.verdict == DONE and state is not None and end.rc is not None:
            worker.pause()
            if self.confinement.level == 0:
                self._kill_strays(worker)
            call.collect()
            if before is not None:
                before.end()
            self.states[state] = worker
            status = OUTPUT_LIMIT if call.too_much else "error" if end.rc else "ok"
            return call.reply(status, end.rc, cpu_s, restored=False)
        code_, used_s = worker.end()
        self._kill_strays()
        call.collect()
        if end.verdict == GONE:
            return None
        verdict = end.verdict or (OUTPUT_LIMIT if call.too_much else status_of(code_, used_s, self.limits.cpu_s))
        return call.reply(verdict, os.waitstatus_to_exitcode(code_), used_s, restored=state is not None)

    def _take_spare(self) -> Worker:
        worker, self.spare = self.spare or self._start(), None
        try:
            worker.wait_ready()
        except BrokenWorker:
            worker.end()
            raise
        return worker

    def _copy_or_restart(self, state: int | None, before: Worker) -> Worker:
        """A copy; a process that its own programs broke so that it cannot be copied is replaced by a fresh one."""
        worker = self._copy(before)
        self._clean()  # it may have written while it copied itself
        if worker is None:
            return self._take_spare()
        worker.resume()
        return worker

    def _copy(self, original: Worker) -> Worker | None:
        """A stopped copy; None: its programs broke the original. All its other forks are killed."""
        try:
            copy = original.copy()
        except BrokenWorker:
            self._kill_strays()
            return None
        copy.pause()
        self._kill_strays(copy)
        return copy

    def _fork(self, state: int, to: int) -> dict[str, Any]:
        """State `to` begins as `state` is. A state whose programs broke it, or that has run none, gives a fresh one."""
        original = self.states.get(state)
        if original is not None:
            copy = self._copy(original)
            if copy is not None:
                self.states[to] = copy
            self._clean()
        return {}

    def _drop(self, state: int) -> None:
        worker = self.states.pop(state, None)
        if worker is not None:
            worker.end()
            self._kill_strays()

    def _kill_strays(self, *new: Worker) -> None:
        """Kill what programs left: level 0 lets them start processes, and those that are copied can fork then."""
        if self.confinement.level >= 1 and not self.confinement.keeps:
            return
        workers = (self.spare, *self.states.values(), *new)
        kept = {self.nursery.pid, *(worker.pid for worker in workers if worker is not None)}
        if not self.confinement.keeps and processes.has_only(kept):  # states may have children, too
            return
        if not processes.kill_descendants(kept):
            raise RuntimeError("processes of the program could not be killed")

    def _clean(self) -> None:
        keeps, user = self.confinement.keeps, self.confinement.user
        if self.own_mount:
            place = namespaces.scratch(keeps=keeps)
            if keeps:  # its state may keep using this file system: only open files take room then
                scratch.empty(place)
            if keeps or os.listdir(place):
                namespaces.renew_scratch(place, user, self.limits.scratch)
            return
        self._make(self.folder)  # a program may have removed it; emptied, since making folders is slow on some disks
        scratch.empty(self.folder)
        if keeps:
            self._make(f"{self.folder}/{namespaces.PLACE}")

    def _make(self, folder: str) -> None:
        os.makedirs(folder, 0o700, exist_ok=True)
        if self.confinement.user is None:
            return
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)  # at level 0 a state may wake
        os.fchown(descriptor, self.confinement.user, self.confinement.user)
        os.close(descriptor)

    def _end(self) -> None:
        for worker in (self.spare, *self.states.values()):
            if worker is not None:
                processes.kill_group(worker.pid)
        if not self.own_mount:
            scratch.remove(self.folder)
