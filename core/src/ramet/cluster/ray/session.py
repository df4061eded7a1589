"""The driver's connection to Ray: a new cluster on this machine, or an existing one (`cluster.address`).

Anyone who reaches the ports of a cluster can run code in it, and Ray listens on all interfaces. So a new cluster
requires a token that this run draws at random and that only its processes have.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import ray
import ray._private.worker
import torch
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]  # compiled
from ray._raylet import Config as RayConfig  # type: ignore[attr-defined]

from ramet.config.schema import ClusterConfig, ModelConfig
from ramet.errors import ConfigError
from ramet.processes import ProcessReaper

logger = logging.getLogger(__name__)
MIN_STORE_BYTES = 200 << 20
CONNECT_S = 10.0
OWN_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_COLOR_PREFIX": "0"}


class Session:
    """Connected from `open` to `close`. A process that was connected before stays so: it is borrowed."""

    def __init__(self, reaper: ProcessReaper | None, *, borrowed: bool, folder: Path | None = None) -> None:
        self._reaper = reaper
        self._folder = folder  # of Ray's files, if the cluster is this run's own
        self._borrowed = borrowed

    @property
    def is_own(self) -> bool:
        """Whether the cluster is this run's own: it has what this machine has, and does not grow."""
        return self._reaper is not None

    @classmethod
    def open(cls, cluster: ClusterConfig, model: ModelConfig) -> Session:
        """Called from the main thread: Linux would end Ray's processes with any other thread that started them.

        Raises `ConfigError` if the cluster cannot be joined.
        """
        if ray.is_initialized():
            return cls(None, borrowed=True)
        logging.getLogger("ray").setLevel(logging.ERROR)
        reaper = ProcessReaper() if cluster.address is None else None
        own_folder = None if reaper is None else _own_folder()
        try:
            with _signal_handler_kept(), _variables_set(OWN_ENVIRONMENT), contextlib.ExitStack() as started:
                if reaper is not None:
                    started.enter_context(reaper.tagging())
                    started.enter_context(_variables_set(_token()))
                    _reload_authentication()
                folder = _connect(cluster, model, own_folder)
                if reaper is not None:
                    reaper.watch_folder(folder)
        except BaseException:
            ray.shutdown()
            if reaper is not None:
                _reload_authentication()
                reaper.reap()
            _remove(own_folder)
            raise
        return cls(reaper, borrowed=False, folder=own_folder)

    def close(self) -> None:
        """Leave the cluster; one of our own ends, and all its processes with it."""
        if not self._borrowed:
            ray.shutdown()
        if self._reaper is not None:
            _reload_authentication()
            self._reaper.reap()
        _remove(self._folder)


def _own_folder() -> Path:
    """A folder of mode 0700 for sockets and logs of a cluster of our own: Ray's default is one for all users.

    The path of a socket below it has 107 bytes at most, so it is short.
    """
    longest = 20  # bytes of a temporary folder's name that leave room for Ray's own names
    return Path(tempfile.mkdtemp(prefix="ramet-ray-", dir="/tmp" if len(tempfile.gettempdir()) > longest else None))


def _remove(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _token() -> dict[str, str]:
    """Environment variables for the processes of a cluster of our own."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _reload_authentication() -> None:
    """Make Ray read mode and token from the environment again: it does so once, when it is imported.

    The mode first, or its threads miss a token that has been removed.
    """
    RayConfig.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _connect(cluster: ClusterConfig, model: ModelConfig, own_folder: Path | None = None) -> str:
    """Returns the folder of this node's logs, which is in `own_folder` if the cluster is our own."""
    is_own = cluster.address is None
    try:
        if cluster.address is not None:
            _check_listening(cluster.address)
        context = ray.init(
            address=cluster.address or "local",
            namespace=f"ramet-{uuid.uuid4().hex}",
            configure_logging=False,
            log_to_driver=False,  # the workers' logs come with their pings, see `health_monitor`
            include_dashboard=False if is_own else None,
            object_store_memory=_store_bytes(model) if is_own else None,
            _temp_dir=None if own_folder is None else str(own_folder / "r"),  # Ray opens this one to all
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        what = (
            f"cluster.address={cluster.address}: cannot join a Ray cluster there" if cluster.address else "cluster=ray"
        )
        raise ConfigError(f"{what}: {error}") from error
    # Otherwise Ray prints its view of every death to stdout, several lines long. Ray is pinned to one minor version.
    ray._private.worker._worker_logs_enabled = False
    assert isinstance(
        context, ray._private.worker.RayContext
    )  # no client: its addresses are refused by `cluster.check`
    return str(context.address_info["session_dir"])


def _check_listening(address: str) -> None:
    """Raise `OSError` if nothing listens there: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()


def _store_bytes(model: ModelConfig) -> int | None:
    """Size of the object store in shared memory. With GPUs Ray's choice; without, the weights twice in float32."""
    if torch.cuda.is_available():
        return None
    weights = sum(file.stat().st_size for file in Path(model.path).glob("*.safetensors"))
    most = shutil.disk_usage("/dev/shm").free // 2 if Path("/dev/shm").is_dir() else MIN_STORE_BYTES
    return max(MIN_STORE_BYTES, min(4 * weights + MIN_STORE_BYTES, most))


@contextlib.contextmanager
def _signal_handler_kept() -> Iterator[None]:
    """Keep the run's handler of SIGTERM, which Ray replaces by its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _variables_set(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that are started inside the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
