"""The child of one program: gives up what it must not have, then runs the program and never returns."""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import NamedTuple, NoReturn

from . import processes, program

SETUP = 3  # descriptor on which a failed set-up is reported; closed before the program starts


class Limits(NamedTuple):
    """Of one program. Sizes in bytes."""

    address_space: int
    file_size: int
    stdout: int
    stderr: int
    output: int


class Streams(NamedTuple):
    """Descriptors that become standard output, standard error and `SETUP`."""

    out: int
    err: int
    setup: int


def run(code: str, folder: str, streams: Streams, limits: Limits, cpu_s: int, parent: int) -> NoReturn:
    """In the forked child. A failed set-up is written to `SETUP`; its end-of-file means success."""
    try:
        for target, source in enumerate(streams, start=1):
            os.dup2(source, target)
        _confine(folder, limits, cpu_s, parent)
        os.close(SETUP)
    except BaseException as error:
        os.write(SETUP, repr(error).encode()[:1000])
        os._exit(1)
    program.run(code)


def _confine(folder: str, limits: Limits, cpu_s: int, parent: int) -> None:
    os.setsid()
    processes.die_with_parent(parent)
    os.chdir(folder)
    os.closerange(SETUP + 1, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it; as a signal it shows which limit was hit
    _limit(resource.RLIMIT_CPU, cpu_s, cpu_s + 1)
    _limit(resource.RLIMIT_AS, limits.address_space)
    _limit(resource.RLIMIT_FSIZE, limits.file_size)
    _limit(resource.RLIMIT_NOFILE, 64)
    _limit(resource.RLIMIT_CORE, 0)
    processes.drop_privileges()
    sys.argv[:] = [""]
    sys.path.insert(0, "")
    for name in [name for name in sys.modules if name.partition(".")[0] == "inside"]:
        del sys.modules[name]


def _limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Lower a limit; a host that allows less already keeps its own."""
    ceiling = resource.getrlimit(kind)[1]
    hard = soft if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))
