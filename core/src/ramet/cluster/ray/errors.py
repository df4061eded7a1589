"""Ray's errors as Ramet's: who is lost and why in one line, or the worker's own error as it was."""

from __future__ import annotations

import re

from ray import exceptions

from ramet.errors import InfraError, RametError

MAX_CAUSE_CHARS = 300
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LOST = (
    exceptions.RayActorError,
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.OutOfMemoryError,
    exceptions.LocalRayletDiedError,
)


class WorkerLost(InfraError):
    """A worker's process is gone, or does not answer."""


def translated(error: Exception, who: str) -> Exception:
    """What to raise in the driver for the error with which a call of worker `who` ended.

    The worker's own error as it was, or one that names who is lost and why in one line.
    """
    if isinstance(error, LOST):
        return WorkerLost(f"{who} is lost: {death_cause(error)}")
    if isinstance(error, exceptions.RayTaskError):
        cause = error.cause
        if isinstance(cause, LOST):
            return WorkerLost(f"{who} lost another worker: {death_cause(cause)}")
        if isinstance(cause, RametError):
            return cause
        if isinstance(cause, Exception) and not isinstance(cause, exceptions.RayError):
            cause.add_note(f"in {who}:\n{COLOUR.sub('', str(error))}")
            return cause
        return InfraError(f"{who}: {_one_line(str(cause))}")
    if isinstance(error, exceptions.RayError):
        return InfraError(f"{who}: {_one_line(str(error))}")
    return error


def death_cause(error: Exception) -> str:
    """Ray's reason for a death in one line, without ids and advice."""
    text = str(error)
    detail = re.search(r"Worker exit detail: (.*)", text, re.DOTALL)
    if detail is not None:
        text = detail[1]
    text = re.split(r"Some common causes|There are some potential|If the process was killed", text)[0]
    kept = [line for line in text.splitlines() if not line.startswith("\t")]
    first = "The actor died unexpectedly before finishing this task."
    cause = _one_line(" ".join(line for line in kept if line.strip() != first)) or "Ray gives no reason"
    if "End of file" in cause:
        return f"its process ended at once: killed (SIGKILL, out of memory) or crashed ({cause.rstrip('.')})"
    return cause


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_CAUSE_CHARS else f"{line[:MAX_CAUSE_CHARS]}…"
