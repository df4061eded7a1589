"""Options of the tool `python`."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec

from ramet import ConfigError
from ramet_tools_python.isolation import LEVELS, PROMISES

ISOLATION = ("auto", *map(str, LEVELS))
STATES = ("call", "rollout")
KEYS = "tools.python.params"


@dataclass(kw_only=True, slots=True)
class PythonConfig:
    """Python interpreter in a sandbox."""

    timeout_s: float = 5.0  # time limit of one program, in seconds; waiting for a processor does not count
    memory_mb: int = 512  # memory of one program in addition to the interpreter, in MiB
    slots: int = 4  # programs that run at the same time, in one rollout worker
    queue_timeout_s: float = 40.0  # wait for a free slot, in seconds; then it is an infrastructure failure
    max_stdout_kb: int = 64  # most KiB of standard output that the model sees; the rest is cut, with a mark
    max_stderr_kb: int = 16  # most KiB of standard error that the model sees
    max_output_kb: int = 4096  # most KiB that a program may write; then it is stopped
    max_file_mb: int = 16  # largest file that a program may write, in MiB
    scratch_mb: int = 64  # size of all files of one program, in MiB, with namespaces (isolation 3)
    preload: list[str] | None = None  # modules imported once, before the programs; null: numpy and sympy if installed
    python: str | None = None  # path of another Python (3.11 or newer); null: the one that runs Ramet
    scratch: str | None = None  # folder for the programs' working directories; null: the system's temporary folder
    isolation: str = "auto"  # 0 to 3: exactly this level, or no start; auto: the highest that this host allows
    require: list[str] = field(default_factory=list)  # promises of isolation that must hold, such as network_off
    state: str = "call"  # lifetime of variables: one call, or one rollout

    def runs_code(self) -> dict[str, str]:
        """Option -> the interpreter, which is not a program of the model's: a recipe may not name it by itself."""
        return {"python": self.python} if self.python else {}


def check(config: PythonConfig) -> None:
    """Raise one `ConfigError` that lists everything wrong with the options."""
    positive = (
        "timeout_s", "memory_mb", "slots", "queue_timeout_s", "max_stdout_kb", "max_stderr_kb", "max_file_mb",
        "scratch_mb",
    )  # fmt: skip
    problems = [
        f"{KEYS}.{name} is {value!r}; allowed: {'a finite number' if value > 0 else 'more than 0'}"
        for name in positive
        if not 0 < (value := getattr(config, name)) < math.inf
    ]
    if not config.max_stdout_kb + config.max_stderr_kb <= config.max_output_kb < math.inf:
        problems.append(
            f"{KEYS}.max_output_kb is {config.max_output_kb}; allowed: at least max_stdout_kb + "
            f"max_stderr_kb = {config.max_stdout_kb + config.max_stderr_kb}"
        )
    if config.state not in STATES:
        problems.append(f"{KEYS}.state is {config.state!r}; allowed: {', '.join(STATES)}")
    problems += _isolation(config)
    problems += _missing(config)
    if sys.platform != "linux":
        problems.append(f"tools.python needs Linux, this is {sys.platform}")
    if problems:
        raise ConfigError("\n".join(problems))


def _isolation(config: PythonConfig) -> list[str]:
    problems = []
    if str(config.isolation) not in ISOLATION:
        problems.append(f"{KEYS}.isolation is {config.isolation!r}; allowed: {', '.join(ISOLATION)}")
    for name in config.require:
        if name not in PROMISES:
            problems.append(f"{KEYS}.require names {name!r}; allowed: {', '.join(PROMISES)}")
        elif config.isolation in ISOLATION[1:] and int(config.isolation) < PROMISES[name]:
            problems.append(
                f"{KEYS}.require names {name}, which needs isolation {PROMISES[name]}; {KEYS}.isolation is "
                f"{config.isolation}"
            )
    return problems


def _missing(config: PythonConfig) -> list[str]:
    problems = []
    if config.python is not None and not (os.path.isfile(config.python) and os.access(config.python, os.X_OK)):
        problems.append(f"{KEYS}.python is {config.python!r}; allowed: an executable file")
    if config.scratch is not None and not (os.path.isdir(config.scratch) and os.access(config.scratch, os.W_OK)):
        problems.append(f"{KEYS}.scratch is {config.scratch!r}; allowed: a folder that can be written")
    if config.python is None:
        absent = [name for name in config.preload or () if find_spec(name.partition(".")[0]) is None]
        problems += [f"{KEYS}.preload names {name!r}, which is not installed" for name in absent]
    return problems
