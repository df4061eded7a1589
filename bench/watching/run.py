"""What watching costs: the same training run with and without the live line and `run.log`, its steps timed.

    python bench/watching/run.py [--repeats 3] [--steps 20]

Runs of `ramet train` in this process, whose stdout and stderr are a pseudo-terminal that a thread empties; they take
turns. Beside the ratio of the steps' times, which a machine with other work blurs, stands what the parts themselves
took: the CPU time of the thread that draws, and of the handler that writes the log.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["RAMET_PLUGINS"] = "async_plugin"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "async_step"))

from harness import make_inputs, measured, print_table, shown, spread, write_results

from ramet.config.compose import compose
from ramet.io.terminal_line import TerminalLine
from ramet.tracking.run_log import RunLog
from ramet.train.training import run

TASKS, GROUP = 8, 8  # of a step
LATENCY_S = 0.05  # of a tool call, two a rollout


@dataclass
class Cost:
    """CPU seconds of the parts in one run."""

    drawing: float = 0.0  # the thread's whole time
    log: float = 0.0
    frames: int = 0


@dataclass(frozen=True)
class Variant:
    """One way to watch. The first of `VARIANTS` is what the others are compared with."""

    name: str
    live: bool = True
    log: bool = True
    trackers: str = "[console]"
    environment: dict[str, str] = field(default_factory=dict)


VARIANTS = (
    Variant("neither", live=False, log=False),
    Variant("live line", log=False),
    Variant("run.log", live=False),
    Variant("both"),
)


@contextlib.contextmanager
def terminal() -> Iterator[None]:
    """stdout and stderr of this process, down to their descriptors."""
    master, slave = pty.openpty()

    def drain() -> None:
        with contextlib.suppress(OSError):
            while os.read(master, 65536):
                pass

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    before = os.dup(1), os.dup(2)
    sys.stdout.flush()
    os.dup2(slave, 1)
    os.dup2(slave, 2)
    os.close(slave)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(before[0], 1)
        os.dup2(before[1], 2)
        os.close(before[0])
        os.close(before[1])
        reader.join(5)
        os.close(master)


@contextlib.contextmanager
def counted(variant: Variant) -> Iterator[Cost]:
    """Switch off what the variant is without, and count what the rest takes."""
    cost = Cost()
    draw, emit = TerminalLine.draw, RunLog.emit

    def counting_draw(line: TerminalLine, text: str) -> None:
        draw(line, text)
        cost.drawing, cost.frames = time.thread_time(), cost.frames + 1  # since the thread began

    def counting_emit(log: RunLog, record: Any) -> None:
        began = time.thread_time()
        emit(log, record)
        cost.log += time.thread_time() - began

    def nothing(*_: Any) -> None:
        pass

    used: Callable[..., None] = counting_emit if variant.log else nothing
    environment = {"TERM": "xterm" if variant.live else "dumb", "CI": "", **variant.environment}
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(TerminalLine, "draw", counting_draw),
        mock.patch.object(RunLog, "emit", used),
    ):
        yield cost


def train(work: Path, name: str, variant: Variant, steps: int) -> dict[str, Any]:
    overrides = [
        f"model.path={work / 'model'}", f"data.train=[{work / 'tasks.jsonl'}]", f"run.root={work}", f"run.name={name}",
        "run.threads=1", "rollout_step=calls", "rollout_step.system_prompt=never", "tools=[slow]",
        f"tools.slow.params.latency_s={LATENCY_S}", "rewards=[even_bytes]", f"rollout.group_size={GROUP}",
        f"train.tasks_per_step={TASKS}", "rollout.max_response_tokens=64", "data.max_prompt_tokens=32",
        f"train.steps={steps}", "train.save_every=1000", f"trackers={variant.trackers}", "policy.lr=0",
        "engine.params.slots=64", "rollout.max_concurrent=64",
    ]  # fmt: skip
    with terminal(), counted(variant) as cost:
        run(compose(overrides, job="train"))
    lines = [json.loads(line) for line in (work / name / "metrics.jsonl").read_text().splitlines()]
    seconds = [line["time/step_s"] for line in lines[1:]]
    total = sum(line["time/step_s"] for line in lines)
    return {
        "variant": variant.name,
        "step_s": statistics.median(seconds),
        "total_s": total,
        "frames_per_s": cost.frames / total,
        "drawing_share": cost.drawing / total,
        "log_share": cost.log / total,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_inputs(work)
        train(work, "warm_up", VARIANTS[0], 2)
        for repeat in range(options.repeats):
            for number, variant in enumerate(VARIANTS):
                with measured() as took:
                    one = train(work, f"{repeat}_{number}", variant, options.steps)
                runs.append(one | {"load": took.load, "cpu_s": took.cpu_s})
    summary, rows = _summary(runs)
    print_table(("watched by", "step s", "of the first", "frames/s", "drawing, share", "log, share"), rows)
    path = write_results("watching", {"repeats": options.repeats, "steps": options.steps}, runs, summary)
    print(f"raw numbers in {path}")


def _summary(runs: list[dict[str, Any]]) -> tuple[dict[str, Any], list[list[str]]]:
    summary: dict[str, Any] = {}
    rows = []
    first = [one["step_s"] for one in runs if one["variant"] == VARIANTS[0].name]
    for variant in VARIANTS:
        own = [one for one in runs if one["variant"] == variant.name]
        ratios = [one["step_s"] / base for one, base in zip(own, first, strict=True)]
        shares = {name: [one[name] for one in own] for name in ("drawing_share", "log_share")}
        summary[variant.name] = {"ratio": spread(ratios), **{name: spread(found) for name, found in shares.items()}}
        rows.append([
            variant.name, shown([one["step_s"] for one in own]), shown(ratios),
            f"{statistics.median(one['frames_per_s'] for one in own):.1f}",
            *(shown(found, 5) for found in shares.values()),
        ])  # fmt: skip
    return summary, rows


if __name__ == "__main__":
    main()
