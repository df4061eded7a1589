"""Send this process a signal at exact points of its steps: `E2E_KILL=point:step`, or several with a comma between them.

The signal is SIGKILL, or the one that `E2E_SIGNAL` names. With `E2E_FILL=FILE` that file fills its disk instead, with
`E2E_REMOVE=FOLDER` that folder is deleted. With `E2E_KILL_PARENT` the parent gets the signal: the pipeline of a stage.
Product code knows nothing of it. Of jobs other than `ramet train` the step is 0.

A point is a call of a function of Ramet, which is wrapped from here. What was going on then is written to the file
`E2E_KILL_LOG` first, so that a test can see that the signal struck, and what it struck.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENDS_S = 60.0  # a process ends with its parent before
HEARD_S = 0.5  # for the main thread, which hears all signals, while the thread that sent one waits


@dataclass(frozen=True)
class KillPoint:
    """The `call`-th call of `target` in the step, and whether the signal is sent before it or after it."""

    target: str  # module:attribute, where callers look it up
    call: int = 1
    after: bool = False
    option: str | None = None  # only calls with this named argument count


KILL_POINTS = {
    "start": KillPoint("ramet.runs.run_dir:RunDir.record"),
    "first_requests": KillPoint("ramet.engines.torch.engine:TorchEngine.generate", call=8),
    "generating": KillPoint("ramet.engines.torch.batcher:TorchBatcher.step", call=12, after=True),
    "tools": KillPoint("e2e_plugin:Digest.wait", call=9),
    "fork": KillPoint("ramet.rollout.tree:LiveRollout.fork", call=3, after=True),
    "late_requests": KillPoint("ramet.engines.torch.engine:TorchEngine.generate", call=50),
    "scoring": KillPoint("e2e_plugin:EvenBytes.score", call=10),
    "scored": KillPoint("ramet.train.learning:row_metrics"),
    "estimated": KillPoint("ramet.train.learning:estimate", after=True),
    "recording": KillPoint("ramet.rollout.record:record_line", call=2, after=True),
    "recorded": KillPoint("ramet.train.recording:write_records", after=True),
    "update": KillPoint(
        "ramet.policy.model_trainer:ModelTrainer.optimizer_step", after=True
    ),  # half of the mini-batches
    "updated": KillPoint("ramet.policy.rank:PolicyRank.update", after=True),
    "sync": KillPoint("ramet.engines.torch.model_runner:ModelRunner.load", after=True),  # in the engine's thread
    "validation": KillPoint("ramet.train.validation:play", after=True),
    "saving": KillPoint("ramet.policy.rank:PolicyRank.write_staged", after=True),
    "hashing": KillPoint("ramet.policy.checkpoint.state:note_hashes"),  # a rank's tensors are written, no hashes
    "sealing": KillPoint("ramet.policy.checkpoint.store:_seal"),  # all files, no manifest
    "sealed": KillPoint("ramet.policy.checkpoint.store:_seal", after=True),  # manifest, not renamed
    "renamed": KillPoint("ramet.policy.checkpoint.store:Checkpoints._prune"),
    "pruning": KillPoint("os:unlink", after=True, option="dir_fd"),  # rmtree deleted one file of an old checkpoint
    "writing": KillPoint("ramet.policy.rank:PolicyRank.write_staged"),
    "saved": KillPoint("ramet.policy.checkpoint.store:Checkpoints.save", after=True),
    "logging": KillPoint("ramet.tracking.jsonl:JsonlTracker.log"),
    "logged": KillPoint("ramet.tracking.jsonl:JsonlTracker.log", after=True),
    "export": KillPoint("ramet.policy.checkpoint.state:load_tokenizer"),  # weights are written, the tokenizer is not
    "restore": KillPoint("ramet.policy.rank:PolicyRank.load", after=True),
    "result": KillPoint("ramet.evaluate.lines:append_line"),
    "results": KillPoint("ramet.evaluate.files:open_atomic"),
    "sft_saved": KillPoint("ramet.sft.trainer:_Trainer._save_checkpoint", after=True),
    "exported": KillPoint("ramet.export.job:compare"),  # written and read back, not renamed
    "next_stage": KillPoint("ramet.pipeline.job:run_stage", call=2),  # of a pipeline, after the first that ran
    "reporting": KillPoint("ramet.pipeline.report:write_report"),
}


class Killer:
    """Counts the calls of one point within one step (0: before the first)."""

    def __init__(self, name: str, step: int, log: Path) -> None:
        self.name = name
        self.step = step
        self.log = log
        self.point = KILL_POINTS[name]
        self.now = 0
        self.calls = 0
        self.loop: asyncio.AbstractEventLoop | None = None

    def due(self) -> bool:
        self.calls += self.now == self.step
        return self.now == self.step and self.calls == self.point.call

    def strike(self) -> None:
        with self.log.open("w") as file:
            json.dump({"point": self.name, "step": self.step, "rollouts": self.rollouts()}, file)
        if ballast := os.environ.get("E2E_FILL"):
            return fill(Path(ballast))
        if folder := os.environ.get("E2E_REMOVE"):
            return shutil.rmtree(folder)
        number = signal.Signals[os.environ.get("E2E_SIGNAL", "SIGKILL")]
        if os.environ.get("E2E_KILL_PARENT"):
            os.kill(os.getppid(), number)
            time.sleep(ENDS_S if number == signal.SIGKILL else 0)
            return
        os.kill(os.getpid(), number)
        if threading.current_thread() is not threading.main_thread():
            time.sleep(HEARD_S)

    def rollouts(self) -> list[str]:
        """Branch paths of the running rollouts."""
        tasks = [] if self.loop is None else asyncio.all_tasks(self.loop)
        return [task.get_name().rpartition("/")[2] for task in tasks if task.get_name().startswith("rollout ")]

    def begin(self, step: int) -> None:
        self.now, self.calls, self.loop = step, 0, asyncio.get_running_loop()


def fill(ballast: Path) -> None:
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))


def arm() -> None:
    """Wrap the points that the environment names, if it names any."""
    for wanted in filter(None, os.environ.get("E2E_KILL", "").split(",")):
        name, _, step = wanted.partition(":")
        killer = Killer(name, int(step), Path(os.environ["E2E_KILL_LOG"]))
        replace("ramet.train.loop:Loop._step", functools.partial(noting, killer))
        replace(killer.point.target, functools.partial(watched, killer))


def replace(target: str, wrap: Callable[[Any], Any]) -> None:
    module, _, path = target.partition(":")
    owner, _, name = path.rpartition(".")
    holder = functools.reduce(getattr, filter(None, owner.split(".")), importlib.import_module(module))
    setattr(holder, name, wrap(getattr(holder, name)))


def noting(killer: Killer, step: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapped(self: Any, number: int) -> None:
        killer.begin(number)
        await step(self, number)

    return wrapped


def watched(killer: Killer, function: Callable[..., Any]) -> Callable[..., Any]:
    def before(named: dict[str, Any]) -> bool:
        """Whether the signal is still to be sent, after the call."""
        option = killer.point.option
        due = (option is None or named.get(option) is not None) and killer.due()
        if due and not killer.point.after:
            killer.strike()
        return due and killer.point.after

    async def wrapped_async(*arguments: Any, **named: Any) -> Any:
        due = before(named)
        result = await function(*arguments, **named)
        if due:
            killer.strike()
        return result

    def wrapped(*arguments: Any, **named: Any) -> Any:
        due = before(named)
        result = function(*arguments, **named)
        if due:
            killer.strike()
        return result

    return wrapped_async if inspect.iscoroutinefunction(function) else wrapped
