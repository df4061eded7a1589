"""The quickstart: a small model is taught the tool format by SFT, then learns with ARPO to use a real Python tool.

Always starts fresh. Everything that it does can be done by hand with the recipe
`hydra_configs/experiment/quickstart.yaml` and the commands `ramet sft`, `ramet train` and `ramet report`;
docs/quickstart.md goes through it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from measure import follows_the_tool, measure
from summary import Outcome, plot, show, write
from traces import split, write_rl, write_sft

from ramet import Benchmark, Task
from ramet.components.build import Components
from ramet.config.compose import compose
from ramet.config.resolved import Resolved
from ramet.models.tiny import make_tiny_model
from ramet.report.html import write_report
from ramet.sft import job as sft
from ramet.train import training as train

NAME = "quickstart"
INPUTS = "quickstart-inputs"  # the first model, the data, and the run of SFT
SFT_ROWS = 9600  # 300 steps of 32
RL_PROBLEMS = 600

logger = logging.getLogger("ramet.quickstart")


class Phases:
    """Seconds per phase, and a line on the screen when one begins."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str, what: str) -> Iterator[None]:
        logger.info("== %s", what)
        started = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started


def main() -> int:
    options = _options()
    run, inputs = Path(options.root) / NAME, Path(options.root) / INPUTS
    _remove(run, "manifest.json")
    _remove(inputs, "init/config.json")
    phases = Phases()
    with phases("prepare", f"making a model of 1.1M parameters and its data in {inputs}"):
        train_config = _compose("train", options)
        benchmark, test = _prepare(inputs, options.seed)
    with phases("sft", f"SFT on {SFT_ROWS} traces: the format, copying, and the habit of answering without the tool"):
        sft.run(_compose("sft", options))
    with phases("measure_before", f"measuring on {len(test)} held-out problems"):
        before = asyncio.run(measure(train_config.config, benchmark, test))
    with phases("rl", f"ARPO, {train_config.config.train.steps} steps with the real Python tool"):
        train.run(train_config)
    (run / "sft").mkdir()  # the report shows the curves of both phases
    shutil.copy(inputs / "sft/metrics.jsonl", run / "sft/metrics.jsonl")
    trained = _compose("train", options, f"model.path={run / 'model'}").config
    with phases("measure_after", "measuring again, and once with a tool that lies"):
        after = asyncio.run(measure(trained, benchmark, test))
        follows = asyncio.run(follows_the_tool(trained, test))
    outcome = Outcome(
        seed=options.seed,
        before=before,
        after=after,
        follows_the_tool=follows,
        seconds_by_phase=phases.seconds,
        config=trained,
    )
    with phases("report", "writing curves and report"):
        write(outcome, run)
        curves, report = plot(run), write_report(run)
    write(outcome, run)
    show(outcome, run, [run / "summary.json", curves, report])
    return _verdict(outcome)


def _verdict(outcome: Outcome) -> int:
    for text in outcome.missed():
        logger.error("not reached: %s", text)
    return 1 if outcome.missed() else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="quickstart", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--root", default="runs", help="where the run directory is made (default: runs)")
    return parser.parse_args()


def _remove(folder: Path, mark: str) -> None:
    """An earlier quickstart, known by a file that it left. Whatever else has this name is refused by the run."""
    if (folder / mark).is_file():
        shutil.rmtree(folder)


def _compose(job: str, options: argparse.Namespace, *more: str) -> Resolved:
    inputs = Path(options.root) / INPUTS
    own = {
        "sft": [
            f"run.root={inputs}",
            "run.name=sft",
            f"model.path={inputs / 'init'}",
            f"sft.data=[{inputs / 'data/sft.jsonl'}]",
        ],
        "train": [
            f"run.root={options.root}",
            f"run.name={NAME}",
            f"model.path={inputs / 'sft/model'}",
            f"data.train=[{inputs / 'data/rl.jsonl'}]",
        ],
    }
    return compose([f"experiment={NAME}", f"run.seed={options.seed}", *own[job], *more], job=job)


def _prepare(inputs: Path, seed: int) -> tuple[Benchmark, list[Task]]:
    """Model and data on disk; the benchmark and its held-out problems."""
    benchmark = Components(compose([f"experiment={NAME}"], job="eval").config).benchmark("arithmetic")
    test = list(benchmark.load("test", None))
    make_tiny_model(inputs / "init", seed=seed)
    (inputs / "data").mkdir(exist_ok=True)
    for_sft, for_rl = split(list(benchmark.load("train", None)), rl=RL_PROBLEMS, seed=seed)
    write_sft(inputs / "data/sft.jsonl", for_sft, rows=SFT_ROWS, seed=seed)
    write_rl(inputs / "data/rl.jsonl", for_rl)
    return benchmark, test


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("ramet").setLevel(logging.INFO)
    sys.exit(main())
