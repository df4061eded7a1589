"""The client's side of a zygote and of its slots: start, talk, stop.

Sockets are used raw through the running loop, so nothing here is bound to a loop that may be gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ramet import ConfigError, InfraError
from ramet_tools_python.config import KEYS, PythonConfig
from ramet_tools_python.inside import scratch, wire
from ramet_tools_python.isolation import Isolation

SYSTEM = sys.platform
START_S = 60.0  # for the interpreter and its preloaded modules
WALL_FACTOR = 3.0  # a program that gets no processor is stopped after so many times its limit
STOP_S = 5.0  # for an orderly end
_TOO_OLD = 71  # exit code
_BOOT = (
    f"import sys; sys.version_info < (3, 11) and sys.exit({_TOO_OLD}); sys.path.insert(0, sys.argv[1]); "
    "from inside.zygote import main; main()"
)
# Isolated like -I (no user site, no variables: Ramet sets the environment), but with hashes that are the same every
# time.
_FLAGS = ("-s", "-P", "-B", "-X", "utf8")
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}


async def receive(sock: socket.socket) -> dict[str, Any]:
    """The next frame. Raises EOFError when the other side is gone."""
    loop = asyncio.get_running_loop()

    async def exactly(size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = await loop.sock_recv(sock, size - len(data))
            if not part:
                raise EOFError("the other side is gone")
            data += part
        return bytes(data)

    return wire.unpack(await exactly(wire.unpack_size(await exactly(wire.HEADER.size))))


async def send(sock: socket.socket, message: dict[str, Any]) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, wire.pack(message))


def _pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs


class ZygoteProcess:
    """A running zygote. Its end, however it comes, is the end of its slots and of their programs."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, folder: str) -> None:
        self.process, self.control, self.folder = process, control, folder
        self.isolation = Isolation(level=0)

    @classmethod
    async def start(cls, config: PythonConfig) -> ZygoteProcess:
        """Start it. Raises `InfraError` if it does not come up, `ConfigError` where options or system are to blame."""
        if SYSTEM != "linux":
            raise ConfigError(
                f"the tool python isolates programs by means that only Linux has, and this system is {SYSTEM!r}; use "
                "WSL2 or a Linux container (docs/supported.md#platforms)"
            )
        zygote = cls._exec(config)
        try:
            async with asyncio.timeout(START_S):
                await send(zygote.control, _settings(config, zygote.folder))
                reply = await receive(zygote.control)
        except (OSError, EOFError, TimeoutError) as error:
            await asyncio.to_thread(zygote.stop)
            if zygote.process.returncode == _TOO_OLD:
                raise ConfigError(f"{KEYS}.python is {config.python!r}; allowed: Python 3.11 or newer") from error
            raise InfraError("the interpreter of the python tool did not start") from error
        except BaseException:  # cancelled: waiting is not possible here, so a thread stops it
            asyncio.get_running_loop().run_in_executor(None, zygote.stop)
            raise
        if "preload" in reply:
            await asyncio.to_thread(zygote.stop)
            raise ConfigError(f"{KEYS}.preload: {reply['preload']}")
        if "error" in reply:
            await asyncio.to_thread(zygote.stop)
            raise InfraError(f"the interpreter of the python tool: {reply['error']}")
        missing = {int(level): why for level, why in reply["missing"].items()}
        zygote.isolation = Isolation(level=reply["level"], way=reply["way"], missing=missing)
        return zygote

    @classmethod
    def _exec(cls, config: PythonConfig) -> ZygoteProcess:
        ours, theirs = _pair()
        folder = tempfile.mkdtemp(prefix="ramet-python-", dir=config.scratch)
        program = [config.python or sys.executable, *_FLAGS, "-c", _BOOT, str(Path(__file__).parent)]
        try:
            process = subprocess.Popen(
                [*program, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_ENVIRONMENT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                cwd="/",
            )
        except OSError:
            ours.close()
            os.rmdir(folder)
            raise
        finally:
            theirs.close()
        return cls(process, ours, folder)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def new_slot(self) -> Slot:
        """Ask for one more slot. Raises OSError if the zygote is gone."""
        ours, theirs = _pair()
        try:
            with theirs:
                socket.send_fds(self.control, [b"+"], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        return Slot(self, ours)

    def stop(self) -> None:
        """End everything that the zygote started. Blocks for at most a few seconds."""
        self.control.close()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # slots share its group; programs die with their slot
            self.process.wait()
        scratch.remove(self.folder)


class Slot:
    """A connection to one slot. Closing it ends the slot and the program in it."""

    def __init__(self, zygote: ZygoteProcess, sock: socket.socket) -> None:
        self.zygote, self.sock = zygote, sock

    async def ready(self) -> None:
        """Wait until the slot has cleaned up after the last program. Raises EOFError if it is gone."""
        await receive(self.sock)
        with contextlib.suppress(BlockingIOError):  # nothing to read, and the slot is there
            if not self.sock.recv(1, socket.MSG_PEEK):
                raise EOFError("the slot is gone")

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        await send(self.sock, request)
        return await receive(self.sock)

    def hang_up(self) -> None:
        """Wake the call that waits on this connection; it closes it."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.sock.close()


def _settings(config: PythonConfig, folder: str) -> dict[str, Any]:
    return {
        "folder": folder,
        "preload": None if config.preload is None else list(config.preload),
        "isolation": None if config.isolation == "auto" else int(config.isolation),
        "keeps": config.state == "rollout",
        "limits": {
            "address_space": config.memory_mb << 20,
            "file_size": config.max_file_mb << 20,
            "scratch": config.scratch_mb << 20,
            "stdout": config.max_stdout_kb << 10,
            "stderr": config.max_stderr_kb << 10,
            "output": config.max_output_kb << 10,
            "seconds": config.timeout_s,
            "wall_seconds": config.timeout_s * WALL_FACTOR,
        },
    }
