"""What a run raises that a signal ended, and the command that goes on with it."""

from __future__ import annotations

import shlex
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line loads this module for `ramet --help`
    from ramet.config.resolved import Resolved


class Stopped(KeyboardInterrupt):
    """A signal ended the run. Its text names the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number  # as a shell reports a process that the signal ended


def resume_command(resolved: Resolved, name: str) -> str:
    """The command line that goes on with this run, in the working directory of this one."""
    given = [text for text in resolved.overrides if text.partition("=")[0].lstrip("+~") != "run.name"]
    place = [] if resolved.config_dir is None else ["--config-dir", str(resolved.config_dir)]
    return shlex.join(["ramet", resolved.job, *place, *given, f"run.name={name}"])
