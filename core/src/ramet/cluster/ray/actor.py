"""What all actors can do: put on the driver's surroundings, answer pings, keep their log for the next ping.

`ping` is answered by a thread apart, which tells a process that computes from one that is stuck. Errors are raised by
methods, never by `__init__`: only a method's error reaches the driver as it was.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray import cloudpickle

from ramet.cluster.ray.driver_environment import DriverEnvironment
from ramet.tracking.log import make_records_harmless

HEALTH = "health"  # concurrency group of pings
SAVE = "save"  # of writing checkpoints while training goes on
MAX_SAID = 10_000  # lines kept for the next ping


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One line of a worker's log."""

    logger: str
    level: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Where a worker lives."""

    node: str  # address
    pid: int
    devices: tuple[str, ...]  # GPUs that Ray gave it


def node_address() -> str:
    """This node's address."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


class _Log(logging.Handler):
    """Keeps lines for the next ping."""

    def __init__(self) -> None:
        super().__init__()
        self.said: deque[Said] = deque(maxlen=MAX_SAID)

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(Said(logger=record.name, level=record.levelno, text=self.format(record)))

    def take(self) -> list[Said]:
        return [self.said.popleft() for _ in range(len(self.said))]


class Actor:
    """What all workers can do. `job` is pickled: it may need modules that only `surroundings` make known here."""

    def __init__(self, surroundings: DriverEnvironment, job: bytes, devices: Sequence[str] | None) -> None:
        surroundings.put_on()
        if devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        self._surroundings = surroundings
        self._job = job
        self._log = _Log()
        make_records_harmless()  # Ray keeps what is said here in files that others can read
        handlers = [self._log, logging.StreamHandler()]
        logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=handlers, force=True)
        logging.getLogger("ramet").setLevel(surroundings.log_level)

    @ray.method(concurrency_group=HEALTH)
    def hello(self) -> Hello:
        context = ray.get_runtime_context()
        devices = context.get_accelerator_ids().get("GPU", [])
        return Hello(node=node_address(), pid=os.getpid(), devices=tuple(map(str, devices)))

    @ray.method(concurrency_group=HEALTH)
    def ping(self) -> list[Said]:
        return self._log.take()

    def _begin(self) -> Any:
        """The job. Raises `ConfigErrors` if this node is not like the driver's."""
        self._surroundings.check(node_address())
        return cloudpickle.loads(self._job)
