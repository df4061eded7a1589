"""Options of the tool `python`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec

from ramet import ConfigError

LEVELS = ("auto", "0")


@dataclass(kw_only=True, slots=True)
class PythonConfig:
    timeout_s: float = 5.0  # wall time of one program; the slot adds at most half a second
    memory_mb: int = 512  # what one program may allocate above the interpreter itself
    slots: int = 4  # programs that run at the same time
    queue_timeout_s: float = 45.0  # wait for a free slot before the call counts as our failure
    max_stdout_kb: int = 64  # kept and shown; the rest is cut, and the text tells so
    max_stderr_kb: int = 16
    max_output_kb: int = 4096  # a program that writes more is stopped
    max_file_mb: int = 16  # size of one file that a program writes
    preload: list[str] = field(default_factory=list)  # modules imported once, before the programs: faster first use
    interpreter: str | None = None  # path of another Python (3.11 or newer); null: the one that runs Ramet
    scratch: str | None = None  # folder for the programs' working directories; null: the system's temporary folder
    level: str = "auto"  # isolation: "auto" takes the highest there is; "0" is the only one so far


def check(config: PythonConfig) -> None:
    """Raise one `ConfigError` that lists everything wrong with the options."""
    positive = ("timeout_s", "memory_mb", "slots", "queue_timeout_s", "max_stdout_kb", "max_stderr_kb", "max_file_mb")
    problems = [
        f"tools.python.params.{name} is {getattr(config, name)!r}; allowed: more than 0"
        for name in positive
        if getattr(config, name) <= 0
    ]
    if config.max_output_kb < config.max_stdout_kb + config.max_stderr_kb:
        problems.append(
            f"tools.python.params.max_output_kb is {config.max_output_kb}; allowed: at least max_stdout_kb + "
            f"max_stderr_kb = {config.max_stdout_kb + config.max_stderr_kb}"
        )
    if config.level not in LEVELS:
        problems.append(f"tools.python.params.level is {config.level!r}; allowed: {', '.join(LEVELS)}")
    problems += _missing(config)
    if sys.platform != "linux":
        problems.append(f"tools.python needs Linux, this is {sys.platform}")
    if problems:
        raise ConfigError("\n".join(problems))


def _missing(config: PythonConfig) -> list[str]:
    problems = []
    if config.interpreter is not None and not os.access(config.interpreter, os.X_OK):
        problems.append(f"tools.python.params.interpreter is {config.interpreter!r}; allowed: an executable file")
    if config.scratch is not None and not os.access(config.scratch, os.W_OK):
        problems.append(f"tools.python.params.scratch is {config.scratch!r}; allowed: a folder that can be written")
    if config.interpreter is None:
        absent = [name for name in config.preload if find_spec(name.partition(".")[0]) is None]
        problems += [f"tools.python.params.preload names {name!r}, which is not installed" for name in absent]
    return problems
