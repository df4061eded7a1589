"""Reasons to mask a rollout: the error that carries its `Fault`, and whose mistake it was."""

from __future__ import annotations

import asyncio
from concurrent.futures import BrokenExecutor
from subprocess import SubprocessError

from ramet.errors import InfraError
from ramet.helpers import CLIENTS
from ramet.types import Fault

OUTSIDE = (InfraError, OSError, MemoryError, EOFError, BrokenExecutor, SubprocessError, asyncio.CancelledError)
DEFECT = "plugin:"  # how `Fault.where` begins if a plugin's own code is to blame


class RolloutFailed(InfraError):
    """Something failed that is not the model's doing; `fault` is what masks the rollout.

    `defect`: it is a mistake of a plugin's own code, which a resume would meet again.
    """

    def __init__(self, where: str, message: str, *, defect: bool = False) -> None:
        super().__init__(f"{where}: {message}")
        self.defect = defect
        self.fault = Fault(where=f"{DEFECT}{where}" if defect else where, message=message)


class StateFailed(RolloutFailed):
    """A state could not be opened, copied or replayed. `name`: its component's name."""

    def __init__(self, name: str, message: str, *, defect: bool = False) -> None:
        super().__init__(f"state:{name}", message, defect=defect)


def is_defect(error: BaseException, seen: frozenset[int] = frozenset()) -> bool:
    """Whether a component's exception is its own mistake, and not a failure of a service, a disk or a machine.

    A resume would meet a mistake again, so rollouts masked by one end a run with another exit code.
    """
    if id(error) in seen:
        return True  # `raise e from e`, or a longer circle of causes: its outer exception decided already
    seen |= {id(error)}
    if isinstance(error, BaseExceptionGroup):  # of an asyncio.TaskGroup
        return all(is_defect(inner, seen) for inner in error.exceptions)
    outside = any(base.__module__.partition(".")[0] in CLIENTS for base in type(error).__mro__)
    if outside or isinstance(error, OUTSIDE):
        return False
    return error.__cause__ is None or is_defect(error.__cause__, seen)
