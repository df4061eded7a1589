"""The isolation of programs from the machine: the levels, their guarantees, and the level in force."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ramet import ConfigError

LEVELS = {
    0: "limits and no privileges, but programs can read this user's files, write them, use the network and start "
    "processes",
    1: "no network and no processes, but programs can read this user's files and write them",
    2: "no network, no processes, no files but the interpreter's and a folder of their own",
    3: "no network, no processes, no files but the interpreter's and a folder of their own",
}
WAYS = {
    "": "",
    "namespaces": ", in namespaces",
    "own user": ", with a user of their own",
    "root": ", but as root, since another user cannot read the interpreter or reach the scratch folder",
}
PROMISES = {"network_off": 1, "no_processes": 1, "file_write": 2, "file_read": 2}  # name -> level that it needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The level in force. `way` is a key of `WAYS`. `missing`: why this host allows no more."""

    level: int
    way: str = ""
    missing: Mapping[int, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return f"isolation level {self.level} ({LEVELS[self.level]}{WAYS[self.way]})"

    @property
    def promises(self) -> list[str]:
        return [name for name, level in PROMISES.items() if level <= self.level]

    def check(self, wanted: str, require: Sequence[str]) -> None:
        """Raise `ConfigError` unless the level is the wanted one and keeps these promises."""
        key, here = "tools.python.params", f"this host allows {self.level}{self._reasons()}"
        problems = []
        if wanted != "auto" and int(wanted) != self.level:
            problems.append(f"{key}.isolation is {wanted}; {here}; set {key}.isolation=auto, or at most {self.level}")
        problems += [
            f"{key}.require names {name}, which needs isolation {PROMISES[name]}; {here}; "
            f"keep {key}.require=[{','.join(self._kept(require))}]"
            for name in require
            if PROMISES[name] > self.level
        ]
        if problems:
            raise ConfigError("\n".join(problems))

    def _kept(self, require: Sequence[str]) -> list[str]:
        """Return the required promises that this level keeps."""
        return [name for name in require if PROMISES[name] <= self.level]

    def _reasons(self) -> str:
        reasons = [f"level {level}: {why}" for level, why in sorted(self.missing.items())]
        return f" ({'; '.join(reasons)})" if reasons else ""

    def record(self, folder: Path) -> None:
        """Write it into a folder of the run, in a file of this host."""
        host = socket.gethostname()
        facts = {"host": host, **asdict(self), "promises": self.promises}
        target = folder / f"isolation-{host}.json"
        part = folder / f".isolation-{host}.{os.getpid()}.tmp"
        part.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        part.replace(target)
