"""vLLM's processes end with the process that started them, however that ended.

vLLM 0.32.0 tells them to end when the engine is closed; when the owner is killed, nobody does, and they compute on.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable

VARIABLE = "RAMET_VLLM_OWNER"  # inherited by whatever vLLM starts


def own() -> None:
    """This process owns what vLLM starts from now on."""
    os.environ[VARIABLE] = str(os.getpid())


def follow_owner() -> None:
    """In a process of vLLM: end, and with it the one between it and the owner, when the owner is gone."""
    owner, parent = int(os.environ[VARIABLE]), os.getppid()

    def end() -> None:
        if parent != owner:
            os.kill(parent, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    watch(owner, end)


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

    threading.Thread(target=wait, name="ramet-owner-watch", daemon=True).start()
