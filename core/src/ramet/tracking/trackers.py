"""Trackers: where the numbers of a step go. One that fails, is slow or hangs is reported and never stops a run.

The console and the metrics file are written where a run logs, in order with its other lines and before the next
checkpoint. All others have a thread of their own.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from ramet.config.schema import Config
from ramet.config.sections import OWN_TRACKERS
from ramet.errors import ConfigError, MissingHere, PluginError, raise_all
from ramet.io.os_errors import os_error_text
from ramet.plugins.extensions import TRACKERS, extension
from ramet.runs.manifest import MANIFEST, read_manifest
from ramet.runs.stopped import OK, exit_code_of
from ramet.tracking import tensorboard, wandb
from ramet.tracking.background import CLOSE_S, BackgroundTracker
from ramet.tracking.console import ConsoleTracker
from ramet.tracking.jsonl import NAME, JsonlTracker, read_metrics
from ramet.tracking.run_log import StepLog
from ramet.types import TrackedRun, Tracker

logger = logging.getLogger(__name__)
CONSOLE, JSONL, WANDB, TENSORBOARD, SAMPLES = OWN_TRACKERS
EXTRAS = (WANDB, TENSORBOARD)  # each needs the package of its name, which the extra of its name brings
FOLDERS = {WANDB: wandb.FOLDER, TENSORBOARD: tensorboard.FOLDER}  # what they write, in the run's directory


class Trackers:
    """Several trackers as one. Failures are counted, and the first of each tracker is logged."""

    def __init__(
        self, trackers: Mapping[str, Tracker], background: Mapping[str, BackgroundTracker] | None = None
    ) -> None:
        self.trackers = dict(trackers)
        self.background = dict(background or {})
        self.failures = dict.fromkeys(trackers, 0)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for background in self.background.values():
            background.log(step, metrics)
        self._each(lambda tracker: tracker.log(step, metrics))

    def rewind(self, step: int) -> None:
        for background in self.background.values():
            background.rewind(step)
        self._each(lambda tracker: tracker.rewind(step))

    def close(self, exit_code: int = OK) -> None:
        """Waits for all of them together, for a limited time."""
        until = time.monotonic() + CLOSE_S
        for background in self.background.values():
            background.end(exit_code)
        self._each(lambda tracker: tracker.close())
        for name, count in self.failures.items():
            if count > 1:
                logger.warning("tracker %s failed %d times in this run", name, count)
        for background in self.background.values():
            background.close(wait_s=until - time.monotonic())

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in self.trackers.items():
            try:
                call(tracker)
            except Exception as error:  # the boundary: whatever a tracker raises, the run continues
                self.failures[name] += 1
                if self.failures[name] == 1:
                    logger.warning("tracker %s failed, the run continues: %s", name, _what(error))


def check_trackers(config: Config, set_by_user: frozenset[str] = frozenset()) -> list[str]:
    """Problems with the configured `trackers` and their options."""
    problems = []
    for name in config.trackers:
        try:
            problems += _check(name, config)
        except (ConfigError, PluginError) as error:
            problems.append(str(error) if name == WANDB else f"trackers: {error}")
    if WANDB not in config.trackers:
        unused = sorted(key for key in set_by_user if key.startswith(f"{WANDB}."))
        with_wandb = ",".join([*config.trackers, WANDB])
        problems += [
            f"{key}: has no effect without its tracker; add it, as in trackers=[{with_wandb}]" for key in unused
        ]
    return problems


def tracker_folders(config: Config) -> list[str]:
    """Return what trackers of the core write in the run's directory in addition to the metrics file."""
    return [f"{FOLDERS[name]}/" for name in config.trackers if name in FOLDERS]


@contextmanager
def open_trackers(config: Config, folder: Path, total_steps: int) -> Iterator[Trackers]:
    """The configured trackers of the run in `folder`, closed with the exit code of what ends the block."""
    manifest = read_manifest(folder / MANIFEST)
    run = TrackedRun(folder=folder, total_steps=total_steps, job=manifest.job, id=manifest.id)
    trackers, exit_code = make_trackers(config, run), OK
    try:
        yield trackers
    except BaseException as error:
        exit_code = exit_code_of(error)
        raise
    finally:
        trackers.close(exit_code)


def make_trackers(config: Config, run: TrackedRun) -> Trackers:
    """The metrics file is always written: the report is made from it. So are the lines of steps in the run's log, where
    it is recorded.

    Raises `ConfigErrors` for unknown names. A tracker that cannot be made is reported and left out.
    """
    raise_all(check_trackers(config))
    metrics = JsonlTracker(run.folder / NAME)
    direct: dict[str, Tracker] = {CONSOLE: ConsoleTracker(run.total_steps)} if CONSOLE in config.trackers else {}
    others = [name for name in dict.fromkeys(config.trackers) if name not in (CONSOLE, JSONL, SAMPLES)]
    if others:
        run = replace(run, logged=max((entry.step for entry in read_metrics(metrics.path)), default=-1))
    background = {name: BackgroundTracker(name, partial(_make, name, config, run)) for name in others}
    return Trackers({**direct, JSONL: metrics, "run.log": StepLog(run.total_steps)}, background)


def _what(error: Exception) -> str:
    return os_error_text(error) if isinstance(error, OSError) else repr(error)


def _check(name: str, config: Config) -> list[str]:
    """Raises `ConfigError` for a name that no package offers, and `PluginError` for one that cannot be imported."""
    if name not in OWN_TRACKERS:
        extension(TRACKERS, name, OWN_TRACKERS).load()
    elif name in EXTRAS and importlib.util.find_spec(name) is None:
        problem = f"trackers: {name!r} needs the package {name!r}; install it with: pip install 'ramet[{name}]'"
        return [MissingHere(problem, missing=f"the package {name}", unchecked="its version")]
    return wandb.check_wandb(wandb.WandbOptions.of(config.wandb)) if name == WANDB else []


def _make(name: str, config: Config, run: TrackedRun) -> Tracker:
    if name == WANDB:
        return wandb.WandbTracker(run, wandb.WandbOptions.of(config.wandb))
    if name == TENSORBOARD:
        return tensorboard.TensorboardTracker(run)
    tracker: Tracker = extension(TRACKERS, name, OWN_TRACKERS).load()(run)
    return tracker
