"""Starts the ranks of a training on this machine and watches them: all of them finish, or all are ended.

A rank that dies leaves the others waiting for it in a collective operation. So the first death ends all, and the error
names that rank and its cause. The ranks find each other through a TCPStore in this process, where each also notes that
it is ready, or why it failed.

Not torch's `elastic_launch` and `@record`, which were tried (torch 2.13):

* Of a rank that was killed and another that lost its connection to it, they name the other: it writes its error before
  the agent notices the kill. Here the others get a moment to fail too, and a signal counts before an error.
* After SIGTERM, ranks have 30 s for the rest of their step and its checkpoint before they are killed. A second
  signal starts the wait again instead of ending the run at once.
* A launcher that is killed by SIGKILL leaves its ranks running.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import IO

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it

from ramet.config.schema import Config, SftConfig, Strategy
from ramet.errors import ConfigErrors, InfraError
from ramet.processes import ownership
from ramet.runs.stopped import StopListener, Stopped
from ramet.sft.prepare import PreparedSft
from ramet.sft.rank_messages import READY, RankFailure, RankInputs
from ramet.tracking.heartbeat import doing
from ramet.tracking.log import harmless

logger = logging.getLogger(__name__)
POLL_S = 0.1
SETTLE_S = 3.0  # for the others to fail too, when one has: the cause is separated from its consequences
KILL_S = 30.0  # for the kernel to end a killed process
HOST = "127.0.0.1"


def run_ranks(config: Config, prepared: PreparedSft, run: Path, signals: StopListener) -> None:
    """Train with `cluster.policy_workers` processes under the run directory `run`; returns when all are done.

    Raises the error of the rank that failed first, as `ConfigError`, `OSError` or `InfraError`, or `Stopped`. Whatever
    happens, no rank is running afterwards.
    """
    inputs = run / f".ranks.{os.getpid()}.tmp"  # a name that the next process removes if this one is killed
    RankInputs.of(config, prepared, run).save(inputs)
    ranks = RankProcesses(config.cluster.policy_workers, config.cluster.timeout_s, less_memory=_less_memory(config.sft))
    doing("starting the ranks")
    try:
        with signals.deferred():
            ranks.start(inputs, config.run.threads)
            ranks.watch(signals)
    finally:
        ranks.kill()
        inputs.unlink(missing_ok=True)


class RankProcesses:
    """The processes, by rank."""

    def __init__(self, size: int, timeout_s: float, *, less_memory: str = "") -> None:
        """`less_memory`: what helps where memory runs out, for messages."""
        self._size = size
        self._less_memory = less_memory
        self._timeout_s = timeout_s
        timeout = timedelta(seconds=timeout_s)
        self._store = TCPStore(HOST, 0, None, True, timeout, wait_for_workers=False)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._readers: list[threading.Thread] = []

    def start(self, inputs: Path, threads: int | None) -> None:
        for rank in range(self._size):
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "ramet.sft.rank", str(inputs)],
                env=self._environment(rank, threads),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if rank > 0 else None,
                stderr=subprocess.STDOUT if rank > 0 else None,
                start_new_session=True,  # Ctrl-C reaches only this process, which passes it on
            )
            self._processes.append(process)
            if process.stdout is not None:
                reader = threading.Thread(target=_forward, args=(rank, process.stdout), daemon=True)
                reader.start()
                self._readers.append(reader)

    def watch(self, signals: StopListener) -> None:
        """Returns when all have ended without an error."""
        ready_by: float | None = time.monotonic() + self._timeout_s
        end_by: float | None = None
        while any(process.poll() is None for process in self._processes):
            time.sleep(POLL_S)
            if signals.asked and end_by is None:
                logger.info("stopping after the current step; a second signal ends at once")
                self._signal(signal.SIGTERM)
                end_by = time.monotonic() + self._timeout_s
            if end_by is not None and (time.monotonic() > end_by or self._failed()):
                break
            if end_by is None and self._failed():
                raise self._failure()
            if ready_by is not None and (ready_by := self._check_ready(ready_by)) is None:
                doing("")  # the first rank says it
        if self._failed() and not signals.asked:
            raise self._failure()
        if any(process.poll() != 0 for process in self._processes):
            raise Stopped(signals.signal or signal.SIGTERM)  # maybe only the ranks have received one

    def kill(self) -> None:
        """Kill the ranks that still run, with what they have started, and wait for their end."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):  # nothing of it is left
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait(KILL_S)
        for reader in self._readers:
            reader.join(KILL_S)

    def _environment(self, rank: int, threads: int | None) -> dict[str, str]:
        cores = threads or max(1, (os.cpu_count() or 1) // self._size)
        return {
            "OMP_NUM_THREADS": str(cores),
            **os.environ,
            **ownership(),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self._size),
            "LOCAL_WORLD_SIZE": str(self._size),
            "MASTER_ADDR": HOST,
            "MASTER_PORT": str(self._store.port),
        }

    def _signal(self, number: int) -> None:
        for process in self._processes:
            process.send_signal(number)  # does nothing if it has ended

    def _failed(self) -> bool:
        """Whether a rank ended with an error. One that ended because it was asked to has not."""
        return any(process.poll() not in (None, 0, 128 + signal.SIGTERM) for process in self._processes)

    def _check_ready(self, ready_by: float) -> float | None:
        """The deadline, None if all ranks are ready. Raises `InfraError` after it."""
        late = [str(rank) for rank in range(self._size) if not self._store.check([READY.format(rank)])]
        if late and time.monotonic() > ready_by:
            raise InfraError(
                f"sft: of {self._size} ranks these were not ready within cluster.timeout_s={self._timeout_s:g}: "
                f"{', '.join(late)}"
            )
        return ready_by if late else None

    def _failure(self) -> Exception:
        """The error to raise for the rank that failed first."""
        until = time.monotonic() + SETTLE_S
        while time.monotonic() < until and any(process.poll() is None for process in self._processes):
            time.sleep(POLL_S)
        codes = [process.poll() for process in self._processes]
        failures = [
            (rank, read_failure) for rank in range(self._size) if (read_failure := RankFailure.read(self._store, rank))
        ]
        killed = [rank for rank, code in enumerate(codes) if code is not None and code < 0 and code != -signal.SIGABRT]
        running = [str(rank) for rank, code in enumerate(codes) if code is None]
        rest = f"; still running then, and stopped: {', '.join(running)}" if running else ""
        if killed:
            return self._error(f"rank {killed[0]} {self._signalled(codes[killed[0]] or 0)}{rest}")
        if failures:
            rank, failure = min(failures, key=lambda pair: pair[1].order)
            if failure.problems is not None:
                return ConfigErrors(failure.problems)
            if (error := failure.os_error) is not None:
                logger.debug("[rank %d] %s", rank, failure.trace.rstrip())
                return error
            logger.error("[rank %d] %s", rank, failure.trace.rstrip())
            return self._error(f"rank {rank} failed: {failure.text}{rest}")
        rank = next(rank for rank, code in enumerate(codes) if code)
        code = codes[rank] or 0
        how = self._signalled(code) if code < 0 else f"ended with exit code {code}; its output is above"
        return self._error(f"rank {rank} {how}{rest}")

    def _error(self, text: str) -> InfraError:
        return InfraError(f"sft: of {self._size} ranks {text}")

    def _signalled(self, code: int) -> str:
        name = signal.Signals(-code).name
        if -code == signal.SIGKILL:
            return f"was killed by {name}, as the kernel does when memory runs out (see dmesg){self._less_memory}"
        return f"died of {name}; its output is above"


def _less_memory(sft: SftConfig) -> str:
    """Settings that lower the memory of a rank and are not used already."""
    smaller = f"sft.max_microbatch_tokens={sft.max_microbatch_tokens} or sft.max_tokens={sft.max_tokens}"
    shards_all = sft.strategy in (Strategy.ZERO3, Strategy.ZERO3_OFFLOAD, Strategy.FSDP)
    strategy = "" if shards_all else "with sft.strategy=zero3 or fsdp, or "
    return f"; less is needed with a smaller {smaller}, or {strategy}over more ranks (cluster.policy_workers)"


def _forward(rank: int, stream: IO[bytes]) -> None:
    for line in stream:
        print(f"[rank {rank}] {harmless(line.decode(errors='replace').rstrip())}", file=sys.stderr, flush=True)
