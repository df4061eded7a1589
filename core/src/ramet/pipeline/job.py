"""`ramet pipeline`: check all stages, run the unfinished ones, each in a separate process, and report.

A stage is `ramet JOB` in a forked copy of this process, which has imported no torch. So a stage has the memory of the
machine and of its GPUs to itself, and sets threads and determinism before torch starts. It is the same run that the
command by itself would be. The checks, which import torch, are in such a process too.
"""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe

from ramet.config.sections import TRUST
from ramet.config.trust import trusted_recipes
from ramet.errors import ConfigError, InfraError, RametError
from ramet.pipeline.check import CheckedPipeline, check_pipeline
from ramet.pipeline.export import RunsRamet, export
from ramet.pipeline.stages import EXPORT, Pipeline, Stage
from ramet.processes import end_with_owner, ownership
from ramet.runs.lock import RunLock
from ramet.runs.own_files import LOCK, is_lock
from ramet.runs.stopped import INTERNAL, USER, StopListener, Stopped, plugin_variables
from ramet.tracking.heartbeat import doing, heartbeat

logger = logging.getLogger(__name__)


def run_pipeline(pipeline: Pipeline, ramet: RunsRamet, arguments: Sequence[str]) -> None:
    """Run the unfinished stages. `arguments`: of `ramet pipeline`, to name the command that continues.

    Raises `ConfigErrors` before anything is written if something is wrong with any stage, `ConfigError` or `InfraError`
    after a stage that failed, and `Stopped`.
    """
    signals = StopListener()
    with signals.listening(), _locked(pipeline) as finished:
        try:
            for number, stage in enumerate(pipeline.stages, start=1):
                of_all = f"stage {stage.name} ({number} of {len(pipeline.stages)})"
                if stage.name in finished:
                    logger.info("%s is finished: %s", of_all, stage.output)
                    continue
                logger.info("%s: ramet %s in %s", of_all, stage.job, stage.folder)
                run_stage(pipeline, stage, ramet, signals)
        except (KeyboardInterrupt, RametError, OSError):
            trusted = [word for file in trusted_recipes() for word in (TRUST, str(file))]
            command = shlex.join(["ramet", "pipeline", *trusted, *arguments])
            logger.warning("continue with: %s", " ".join([*plugin_variables(), command]))
            raise


@contextmanager
def _locked(pipeline: Pipeline) -> Iterator[frozenset[str]]:
    """Check the pipeline, keep its lock in the block, and yield the names of the stages that are finished.

    A pipeline that has begun is locked before the checks: another process might finish a stage during them.
    """
    lock = RunLock(pipeline.folder / LOCK)
    has_begun = is_lock(lock.path)
    try:
        if has_begun:
            lock.acquire()
        finished = _checked(pipeline).finished
        if not has_begun:
            pipeline.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        yield finished
    finally:
        lock.release()


def run_stage(pipeline: Pipeline, stage: Stage, ramet: RunsRamet, signals: StopListener) -> None:
    """Run one stage in a separate process. A signal that this process gets is passed on to it once."""

    def task() -> int:
        if stage.job == EXPORT:
            return export(stage, stage.options(pipeline.handed_on), ramet)
        folder = [] if pipeline.config_dir is None else ["--config-dir", str(pipeline.config_dir)]
        return ramet([stage.job, *folder, *stage.overrides(pipeline.handed_on)])

    child = _forked(task)
    try:
        code = _ended(child)
    except KeyboardInterrupt:
        with suppress(ProcessLookupError, ChildProcessError):  # it has ended meanwhile
            os.kill(child, signals.signal or signal.SIGINT)
            _ended(child)
        raise
    if code == 0:
        return
    if code < 0:
        name = signal.Signals(-code).name
        memory = ", as the kernel does when memory runs out (see dmesg)" if -code == signal.SIGKILL else ""
        raise InfraError(f"stage {stage.name} was ended by {name}{memory}")
    if code in (128 + signal.SIGTERM, 128 + signal.SIGINT):
        raise Stopped(code - 128)  # only the stage received it
    kind = ConfigError if code == USER else InfraError
    raise kind(f"stage {stage.name} ended with exit code {code}; its output is above")


def _checked(pipeline: Pipeline) -> CheckedPipeline:
    """Check in another process, so that its memory is given back. Raises the checks' errors."""
    reader, writer = Pipe(duplex=False)

    def task() -> int:
        try:
            with heartbeat():
                doing("checking all stages")
                checked = check_pipeline(pipeline)
            writer.send(checked)
        except Exception as error:
            error.add_note(traceback.format_exc())  # which a pickled error loses
            writer.send(error)
        return 0

    child = _forked(task)
    writer.close()
    try:
        answer = reader.recv()
    except EOFError as error:
        raise InfraError(f"the checks ended with exit code {_ended(child)}; what they printed is above") from error
    except KeyboardInterrupt:
        os.kill(child, signal.SIGKILL)  # nothing is written yet
        _ended(child)  # it has the lock too
        raise
    finally:
        reader.close()
    _ended(child)
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, CheckedPipeline)
    return answer


def _forked(task: Callable[[], int]) -> int:
    """Start a process that runs `task`, and return its id. It ends when this process does, and the terminal's Ctrl-C
    does not reach it. Its exit code is the task's.
    """
    owner = ownership()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = INTERNAL
    try:
        os.setsid()
        os.environ.update(owner)
        end_with_owner()
        code = task()
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _ended(child: int) -> int:
    """Wait for a process. Returns its exit code, negative if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
