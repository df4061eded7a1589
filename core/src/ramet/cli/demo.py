"""`ramet demo`: a recorded training run, its table replayed and its report written. Needs no torch and no network.

`scripts/record_demo.py` makes the recording from the directory of a run.
"""

from __future__ import annotations

import json
import time
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

from ramet.cli.terminal import Parser, say
from ramet.errors import ConfigError
from ramet.planning.run_plan import not_writable
from ramet.report.html import check_out, write_report
from ramet.tracking.console import ConsoleTracker
from ramet.tracking.jsonl import NAME, MetricLine, read_metrics

RECORDING = "quickstart_smollm2"  # the run's directory, in ramet/demo
FACTS = "recording.json"
REPORT = "ramet-demo.html"
REPLAY_S = 3.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Facts of the recorded run. Accuracies: mean over the held-out problems, and half width of a 95 % interval."""

    model: str
    learns: str  # completes "learns to …"
    algorithm: str
    hardware: str
    date: str
    commit: str
    steps: int
    seconds: float  # of RL
    problems: int
    before: tuple[float, float]
    after: tuple[float, float]
    change: tuple[float, float]

    def text(self) -> str:
        return (
            f"A recorded run; nothing is trained now. {self.model} learns to {self.learns}:\n"
            f"{self.steps} steps of {self.algorithm} in {self.seconds / 60:.0f} minutes on {self.hardware} "
            f"({self.date}, commit {self.commit[:8]}).\n"
        )

    def result(self) -> str:
        pairs = (self.before, self.after, self.change)
        after_sft, after_rl, change = (f"{mean:.3f} ± {half_width:.3f}" for mean, half_width in pairs)
        return (
            f"\nAccuracy on {self.problems} held-out problems (95 % intervals): {after_sft} after SFT, {after_rl} "
            f"after RL, +{change}.\nTable: forks a group, tokens a rollout (length), rollouts cut at the limit and "
            "masked, KL of the update, gap of log-probabilities between engine and trainer.\n"
            "To train, in a clone: make quickstart (a tiny model, a minute), make quickstart MODEL=smollm2 (15 minutes)"
        )


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="ramet demo",
        add_help=False,
        description="Replay the table of a recorded run, and write its report. Needs no torch and no network.",
    )
    parser.add_argument("--out", type=Path, default=Path(REPORT), help=f"the report's file; default: {REPORT} here")
    parser.add_argument("--open", action="store_true", help="open the report in a browser")
    parser.add_argument("--fast", action="store_true", help="print the table at once")
    options = parser.read(arguments)
    if options is None:
        return 0
    folder = Path(str(files("ramet"))) / "demo" / RECORDING
    check_out(options.out)
    for problem in not_writable(options.out.absolute().parent, "--out"):
        raise ConfigError(f"{problem}; name a file in another folder")
    recording = Recording(**json.loads((folder / FACTS).read_text(encoding="utf-8")))
    say(recording.text())
    replay(read_metrics(folder / NAME), recording.steps, 0.0 if options.fast else REPLAY_S)
    say(recording.result())
    report = write_report(folder, options.out).resolve()
    opened = options.open and webbrowser.open(report.as_uri())
    say(f"{'Opened' if opened else 'Open in a browser'}: {report}")
    return 0


def replay(entries: Sequence[MetricLine], total_steps: int, seconds: float) -> None:
    """Print the entries as the run did, with the pauses between them shortened to `seconds` in all."""
    tracker = ConsoleTracker(total_steps)
    pauses = [0.0, *(max(0.0, later.time - earlier.time) for earlier, later in pairwise(entries))]
    for entry, pause in zip(entries, pauses, strict=True):
        time.sleep(seconds * pause / (sum(pauses) or 1.0))
        tracker.log(entry.step, entry.metrics)
