"""Pings all workers from a thread of the driver: finds who died or is silent, forwards logs, notes their progress."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from ramet.cluster.ray.actor_base import LogLine, Ping
from ramet.cluster.ray.worker import RayWorker, WorkerLost, translated
from ramet.io import repeats

PERIOD_S = 1.0
SILENCE_S = 10.0
OnLost = Callable[[RayWorker, WorkerLost], None]


@dataclass(slots=True, eq=False)
class _Watched:
    worker: RayWorker
    on_lost: OnLost
    may_be_silent: bool
    ping: Any = None
    silent_s: float = 0.0


class HealthMonitor:
    """`on_lost` is called in the event loop, once per worker."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched: dict[RayWorker, _Watched] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ramet-health-monitor", daemon=True)
        self._thread.start()

    def watch(self, worker: RayWorker, on_lost: OnLost, *, may_be_silent: bool) -> None:
        """A worker that may be silent is lost only when it is dead: one that starts, or that computes for long."""
        with self._lock:
            self._watched[worker] = _Watched(worker, on_lost, may_be_silent)

    def unwatch(self, worker: RayWorker) -> None:
        with self._lock:
            self._watched.pop(worker, None)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=2 * PERIOD_S)

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_S / 4):
            with self._lock:
                watched = list(self._watched.values())
            if watched:
                self._ping_all(watched)

    def _ping_all(self, watched: list[_Watched]) -> None:
        """Ping all, and wait for one period. Silence is counted in periods, not by the clock: a driver that was stopped
        itself, or a machine that slept, must not find all its workers silent.
        """
        for entry in watched:
            if entry.ping is None:
                entry.ping = entry.worker.actor.ping.remote()
        pings = [entry.ping for entry in watched]
        ready, _ = ray.wait(pings, num_returns=len(pings), timeout=PERIOD_S)
        for entry in watched:
            if entry.ping in ready:
                self._receive(entry)
                continue
            entry.silent_s += PERIOD_S
            if entry.silent_s >= SILENCE_S and not entry.may_be_silent:
                self._report(entry, WorkerLost(f"{entry.worker} is lost: it has not answered for {SILENCE_S:g} s"))

    def _receive(self, entry: _Watched) -> None:
        try:
            answer: Ping = ray.get(entry.ping)
        except Exception as error:
            cause = translated(error, str(entry.worker))
            self._report(entry, cause if isinstance(cause, WorkerLost) else WorkerLost(str(cause)))
            return
        entry.ping, entry.silent_s = None, 0.0
        entry.worker.note_progress(answer.progress)
        forward_logs(entry.worker, answer.lines)

    def _report(self, entry: _Watched, error: WorkerLost) -> None:
        self.unwatch(entry.worker)
        with contextlib.suppress(RuntimeError):  # the loop was closed: nothing waits for the worker any more
            self._loop.call_soon_threadsafe(entry.on_lost, entry.worker, error)


def forward_logs(worker: RayWorker, lines: list[LogLine]) -> None:
    """Log a worker's lines in the driver, with the worker's name."""
    for line in lines:
        logger, message = logging.getLogger(line.logger), "%s: %s"
        if line.kind is None:
            logger.log(line.level, message, worker.name, line.text)
        else:
            repeats.log(logger, line.level, line.kind, message, worker.name, line.text)
