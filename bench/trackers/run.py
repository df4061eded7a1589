"""What trackers cost a run: the time that each call of `log` takes from it, and the CPU time of their threads.

    python bench/trackers/run.py [--repeats 5] [--steps 100]

Every step computes for a while on the run's thread, then logs as many metrics as a step of training does. Two trackers
are made for this: one whose first call never returns, and one that always raises. `wandb` is offline. The metrics file
is always written; the side `jsonl` has nothing else. Sides take turns; the first round is not counted.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import measured, print_table, shown, spread, write_results

from ramet.config.schema import Config
from ramet.tracking.background import BackgroundTracker
from ramet.tracking.trackers import Trackers, make_trackers
from ramet.types import TrackedRun

SIDES = ("jsonl", "tensorboard", "wandb", "hangs", "raises")
OWN = ("hangs", "raises")  # of this bench
METRICS = 60  # as a step of the quickstart has
WORK_S = 0.02  # of CPU time between two calls; a real step takes 0.5 s and more
STEP_S = 1.0  # that costs are compared with
GOAL = 0.01
DONE = threading.Event()  # ends what hangs, when all is measured


class Hangs:
    """Its service accepts the first call and never answers."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        DONE.wait()

    def rewind(self, step: int) -> None: ...

    def close(self) -> None: ...


class Raises(Hangs):
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        raise ConnectionError("no route to host")


def trackers_of(side: str, folder: Path) -> Trackers:
    """Made and ready, so that imports and connections are not counted."""
    chosen = [] if side in OWN else [side]
    config = Config(trackers=chosen, wandb={"mode": "offline"})
    trackers = make_trackers(config, TrackedRun(folder=folder, total_steps=0, job="train", id="bench"))
    if side in OWN:
        trackers.background[side] = BackgroundTracker(side, Hangs if side == "hangs" else Raises)
    for one in trackers.background.values():
        while one._busy_since is not None:
            time.sleep(0.01)
    return trackers


def work() -> None:
    """The run's own: Python that holds the interpreter, so that a busy thread of a tracker would be in its way."""
    until = time.thread_time() + WORK_S
    while time.thread_time() < until:
        sum(range(200))


def run_of(side: str, steps: int) -> dict[str, float]:
    """Milliseconds a step: of the run's thread in `log`, and of CPU in all threads beside the work."""
    with tempfile.TemporaryDirectory() as folder:
        trackers = trackers_of(side, Path(folder))
        calls: list[float] = []
        with measured() as one:
            for step in range(1, steps + 1):
                work()
                metrics = {f"area/metric_{i}": step / (i + 1) for i in range(METRICS)}
                started = time.perf_counter()
                trackers.log(step, metrics)
                calls.append(1000 * (time.perf_counter() - started))
        for hanging in trackers.background.values():
            if side in OWN:
                hanging.slow_s = 0.0  # as after a minute: it is not waited for
        trackers.close()
    cpu = 1000 * (one.cpu_s / steps - WORK_S)
    return {"log_ms": sorted(calls)[steps // 2], "log_max_ms": max(calls), "cpu_ms": cpu,
            "wall_ms": 1000 * one.wall_s / steps, "load": one.load}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    logging.disable(logging.WARNING)  # of trackers that are to fail
    runs: list[dict[str, Any]] = []
    for repeat in range(given.repeats + 1):
        for side in SIDES:
            numbers = run_of(side, given.steps)
            if repeat:
                runs.append({"side": side, "round": repeat, **numbers})
    DONE.set()
    rows, summary = [], {}
    for side in SIDES:
        own = [run for run in runs if run["side"] == side]
        log, cpu = [run["log_ms"] for run in own], [run["cpu_ms"] for run in own]
        share = max(0.0, spread(cpu)["median"]) / 1000 / STEP_S
        summary[side] = {"log_ms": spread(log), "cpu_ms": spread(cpu), "share_of_a_step": share}
        rows.append([side, shown(log, 2), shown(cpu, 2), f"{share:.2%}"])
    print_table(("tracker", "ms in log", "ms of CPU", f"share of {STEP_S:g} s"), rows)
    settings = {"steps": given.steps, "metrics": METRICS, "work_s": WORK_S, "step_s": STEP_S, "goal": GOAL}
    print(f"\nraw numbers: {write_results('trackers', settings, runs, summary).name}")


if __name__ == "__main__":
    main()
