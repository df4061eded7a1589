"""The common part of all actors: the driver's environment, pings, and logs that the next ping returns.

A separate thread answers `ping`, which distinguishes a process that computes from one that is stuck. Errors are raised
by methods, never by `__init__`: only a method's error reaches the driver as it was. Nothing here needs torch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import ray
from ray import cloudpickle

from ramet.cluster.ray.driver_environment import DriverEnvironment
from ramet.components.services import RunServices
from ramet.components.toolbox import Schemas
from ramet.config.schema import Config, RunConfig
from ramet.io import repeats
from ramet.policy.progress import PassProgress
from ramet.rollout.progress import RolloutProgress
from ramet.tracking.log import make_records_harmless, quiet_libraries

if TYPE_CHECKING:
    from ramet.policy.spec import CriticSpec, PolicySpec

HEALTH = "health"  # concurrency group of pings
SAVE = "save"  # of writing checkpoints while training continues
F = TypeVar("F", bound=Callable[..., Any])
SIOCGIFADDR = 0x8915  # netdevice(7): the address of an interface
LOOPBACK = "lo"
MAX_LOG_LINES = 10_000  # kept for the next ping


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of a worker's log. `level` is one of `logging`'s."""

    logger: str
    level: int
    text: str
    kind: str | None = None  # of a warning that may come again


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """A worker's answer to a ping."""

    lines: list[LogLine]  # since the last ping
    progress: RolloutProgress | PassProgress | None = None  # of its current work


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorProcess:
    """The process in which a worker runs."""

    node: str  # address
    pid: int
    devices: tuple[str, ...]  # GPUs that Ray gave it


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSetup:
    """The arguments of a rollout worker."""

    config: Config
    branching: bool
    services: RunServices
    tool_sets: Mapping[str, Schemas]  # as opened before the start


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySetup:
    """The arguments of a policy rank."""

    run: RunConfig
    timeout_s: float
    spec: PolicySpec
    critic: CriticSpec | None
    world_size: int


def node_address() -> str:
    """This node's address."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def use_node_interface() -> None:
    """Let gloo and NCCL connect over the interface of the address by which Ray knows this node, unless the user has
    chosen one. By default gloo takes the address of the host's name, which may be the loopback, or another network.
    """
    name = interface_of(node_address())
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        if name != LOOPBACK:
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # this one, not all whose names begin so


def interface_of(address: str) -> str | None:
    """The network interface that has this IPv4 address; None if none has it."""
    import fcntl  # not on every system that can read this module

    for _, name in socket.if_nameindex():
        request = struct.pack("256s", name.encode()[:15])
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            if socket.inet_ntoa(fcntl.ioctl(asked.fileno(), SIOCGIFADDR, request)[20:24]) == address:
                return name
    return None


class _LogBuffer(logging.Handler):
    """Keeps lines for the next ping; the oldest are dropped if there are too many."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=MAX_LOG_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        kind = repeats.kind_of(record)
        self._lines.append(LogLine(logger=record.name, level=record.levelno, text=self.format(record), kind=kind))

    def take(self) -> list[LogLine]:
        return [self._lines.popleft() for _ in range(len(self._lines))]


def in_group(group: str) -> Callable[[F], F]:
    """Let a method run in a separate concurrency group. The type of the method does not change."""
    return cast(Callable[[F], F], ray.method(concurrency_group=group))


def two_results(method: F) -> F:
    """Let a method return a pair: its caller is sent the first, and a reference to the second (`RayWorker.call`)."""
    return cast(F, ray.method(num_returns=2)(method))


class Actor:
    """Methods of all workers. `setup` is pickled: it may need modules that only `driver` makes importable here."""

    ENVIRONMENT: ClassVar[Mapping[str, str]] = {}  # of its process from its start on, where the user has set nothing

    def __init__(self, driver: DriverEnvironment, setup: bytes, devices: Sequence[str] | None) -> None:
        driver.apply()
        if devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        self._driver = driver
        self._setup = setup
        self._log = _LogBuffer()
        self._progress: Callable[[], RolloutProgress | PassProgress | None] | None = None  # from the start on
        quiet_libraries()
        make_records_harmless()  # Ray keeps the log in files that other users can read
        handlers = [self._log, logging.StreamHandler()]
        logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=handlers, force=True)
        logging.getLogger("ramet").setLevel(driver.log_level)

    @in_group(HEALTH)
    def process(self) -> ActorProcess:
        context = ray.get_runtime_context()
        devices = context.get_accelerator_ids().get("GPU", [])
        return ActorProcess(node=node_address(), pid=os.getpid(), devices=tuple(map(str, devices)))

    @in_group(HEALTH)
    def ping(self) -> Ping:
        return Ping(lines=self._log.take(), progress=None if self._progress is None else self._progress())

    def _read_setup(self) -> Any:
        """The setup. Raises `ConfigErrors` if this node differs from the driver's."""
        self._driver.check(node_address())
        return cloudpickle.loads(self._setup)
