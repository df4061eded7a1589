"""vLLM's processes end with the process that started them, however that ended.

vLLM 0.32.0 tells them to end when the engine is closed; when their parent is killed, nobody does, and they compute on.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable

VARIABLE = "RAMET_VLLM_PARENT"  # inherited by whatever vLLM starts


def be_parent() -> None:
    """What vLLM starts from now on ends with this process."""
    os.environ[VARIABLE] = str(os.getpid())


def end_with_parent() -> None:
    """In a process of vLLM: end, and with it the one between it and the parent, when the parent has ended."""
    parent, starter = int(os.environ[VARIABLE]), os.getppid()

    def end() -> None:
        if starter != parent:
            os.kill(starter, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    watch(parent, end)


def watch(pid: int, end: Callable[[], None]) -> None:
    """Call `end` in a thread of its own when this process has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        end()
        return

    def wait() -> None:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll()
        end()

    threading.Thread(target=wait, name="ramet-parent-watch", daemon=True).start()
