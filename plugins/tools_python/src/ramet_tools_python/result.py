"""The outcome of one program, and its text for the model.

The text is fixed English without paths, process numbers, measured times or host names: equal programs must give equal
text, on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

NO_OUTPUT = "(no output)"


class Status(StrEnum):
    OK = "ok"
    # The model's own doing: shown as text, counts for the reward.
    ERROR = "error"  # an exception or an exit code
    TIMEOUT = "timeout"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"  # reserved for limits from outside: Python itself raises MemoryError, an `error`
    OUTPUT_LIMIT = "output_limit"
    THREAD_LIMIT = "thread_limit"
    FILE_LIMIT = "file_limit"
    SIGNAL = "signal"
    KILLED = "killed"
    # Infrastructure failures: tried once more, then the rollout is masked.
    SETUP_ERROR = "setup_error"
    INFRA_ERROR = "infra_error"
    QUEUE_TIMEOUT = "queue_timeout"

    @property
    def ours(self) -> bool:
        return self in (Status.SETUP_ERROR, Status.INFRA_ERROR, Status.QUEUE_TIMEOUT)


_REASONS = {
    Status.TIMEOUT: "[stopped: the time limit was reached]",
    Status.CPU_LIMIT: "[stopped: the CPU time limit was reached]",
    Status.MEMORY_LIMIT: "[stopped: the memory limit was reached]",
    Status.OUTPUT_LIMIT: "[stopped: too much output]",
    Status.THREAD_LIMIT: "[stopped: too many threads]",
    Status.FILE_LIMIT: "[stopped: a file became too large]",
    Status.SIGNAL: "[the program crashed]",
    Status.KILLED: "[the program was killed]",
}
RESTORED = "[the variables are as they were before this program]"


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonResult:
    """One program, as it ended. `rc` is the exit code, or minus the signal's number; None: it never ran."""

    status: Status
    rc: int | None = None
    stdout: str = ""
    stderr: str = ""
    truncated_stdout: bool = False
    truncated_stderr: bool = False
    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    queue_ms: float = 0.0
    level: int = 0
    restored: bool = False  # variables are kept between calls, but this call's are lost

    @property
    def text(self) -> str:
        """The text for the model: the output, and for a program that failed also why."""
        parts = [_stream(self.stdout, self.truncated_stdout)]
        if self.status is not Status.OK:
            parts += [_stream(self.stderr, self.truncated_stderr), _REASONS.get(self.status, "")]
        text = "\n".join(part for part in parts if part) or self._silent
        return f"{text}\n{RESTORED}" if self.restored else text

    @property
    def _silent(self) -> str:
        return f"[the program ended with exit code {self.rc}]" if self.status is Status.ERROR else NO_OUTPUT


def read_reply(reply: dict[str, Any], *, queue_ms: float, level: int) -> PythonResult:
    """The result in a slot's reply, whose keys are the fields."""
    return PythonResult(**{**reply, "status": Status(reply["status"])}, queue_ms=queue_ms, level=level)


def _stream(text: str, truncated: bool) -> str:
    shown = text.strip("\n").rstrip()
    return f"{shown}\n[output truncated]" if truncated else shown
