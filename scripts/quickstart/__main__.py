"""The quickstart: a small model is taught a tool's format by SFT, then learns with ARPO to use the tool better.

Always starts fresh. Everything that it does can be done by hand with the recipe `experiment=quickstart_search` or
`experiment=quickstart` and the commands `ramet sft`, `ramet train`, `ramet eval` and `ramet report`; docs/quickstart.md
goes through it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import agent
import arithmetic
import search
from folders import claim
from kind import QuickstartKind
from measure import measure, mislead
from phases import Phases
from real import RealQuickstart
from summary import Outcome, forks_while_learning, plot, show, write

from ramet import Benchmark, Task
from ramet.cli.terminal import print_problems
from ramet.components.build import Components
from ramet.config.compose import compose
from ramet.config.resolved import Resolved
from ramet.errors import RametError
from ramet.models.tiny import make_tiny_model
from ramet.report.html import write_report
from ramet.sft import job as sft
from ramet.train import training as train

KINDS = {"search": search.KIND, "python": arithmetic.KIND, "agent": agent.KIND}  # by the tool
ROOT = "runs"  # as in the recipes
MAX_SEED = 2**32 - 1  # of NumPy

logger = logging.getLogger("ramet.quickstart")


@dataclass(frozen=True, slots=True)
class Quickstart:
    """One quickstart with its folders: `run`, and `inputs` with the first model, the data, and the run of SFT."""

    kind: QuickstartKind
    options: argparse.Namespace

    @property
    def run(self) -> Path:
        return Path(self.options.root) / self.kind.name

    @property
    def inputs(self) -> Path:
        return Path(self.options.root) / f"{self.kind.name}-inputs"

    @property
    def data(self) -> Path:
        return self.inputs / "data"

    def compose(self, job: str, *more: str) -> Resolved:
        steps = [] if self.options.steps is None else [f"train.steps={self.options.steps}"]
        own = {
            "sft": [
                f"run.root={self.inputs}",
                "run.name=sft",
                f"model.path={self.inputs / 'init'}",
                f"sft.data=[{self.data / 'sft.jsonl'}]",
            ],
            "train": [
                f"run.root={self.options.root}",
                f"run.name={self.kind.name}",
                f"model.path={self.inputs / 'sft/model'}",
                f"data.train=[{self.data / 'rl.jsonl'}]",
                *steps,
            ],
            "eval": self.kind.test(self.data),
        }
        given = [f"experiment={self.kind.name}", f"run.seed={self.options.seed}", *own[job]]
        return compose([*given, *self.kind.inputs(self.data), *more], job=job)


def main() -> int:
    options = _options()
    if options.model is not None:
        real = RealQuickstart.of(options)
        return real.prove() if options.proof else real.teach()
    quickstart, phases = Quickstart(KINDS[options.tool], options), Phases()
    run = quickstart.run
    for job in ("sft", "train", "eval"):
        quickstart.compose(job)  # what is wrong with the options is said before anything is removed
    lock = claim(run, quickstart.inputs)
    try:
        outcome = _teach(quickstart, phases)
        with phases("report", "writing curves and report"):
            write(outcome, run)
            curves, report = plot(run, quickstart.kind), write_report(run)
        write(outcome, run)
    finally:
        lock.release()
    show(outcome, [run / "summary.json", curves, report], _next(quickstart, outcome.question))
    for text in outcome.missed():
        logger.error("not reached: %s", text)
    return 1 if outcome.missed() else 0


def _teach(quickstart: Quickstart, phases: Phases) -> Outcome:
    """SFT, measuring, RL, measuring again."""
    kind, run = quickstart.kind, quickstart.run
    with phases("prepare", f"making a small model and its data in {quickstart.inputs}"):
        benchmark, test = _prepare(quickstart)
        to_train = quickstart.compose("train")
    rows = quickstart.options.sft_rows
    with phases("sft", f"SFT on {rows} traces: the format, copying, and the habit of {kind.habit}"):
        sft.run(quickstart.compose("sft"))
    with phases("measure_before", f"measuring on {len(test)} held-out problems"):
        before = asyncio.run(measure(to_train.config, benchmark, test, kind))
    with phases("rl", f"ARPO, {to_train.config.train.steps} steps, to learn {kind.skill}"):
        train.run(to_train)
    (run / "sft").mkdir()  # the report shows the curves of both phases
    shutil.copy(quickstart.inputs / "sft/metrics.jsonl", run / "sft/metrics.jsonl")
    trained = f"model.path={run / 'model'}"
    config = quickstart.compose("train", trained).config
    with phases("measure_after", f"measuring again, and once with {kind.misleading}"):
        after = asyncio.run(measure(config, benchmark, test, kind))
        misleading = quickstart.compose("train", trained, *kind.mislead(quickstart.data)).config
        misled = asyncio.run(mislead(misleading, benchmark, test, kind))
    return Outcome(
        kind=kind,
        seed=quickstart.options.seed,
        question=test[0].question,
        before=before,
        after=after,
        misled=misled,
        forks=forks_while_learning(run),
        seconds_by_phase=phases.seconds,
        config=config,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="quickstart", description=__doc__)
    parser.add_argument("--tool", choices=KINDS, default=next(iter(KINDS)), help="(default: %(default)s)")
    parser.add_argument("--model", metavar="smollm2|FOLDER", help="a real language model instead (docs/real_model.md)")
    parser.add_argument("--proof", action="store_true", help="with --model: measure a finished quickstart thoroughly")
    parser.add_argument("keys", nargs="*", metavar="key=value", help="with --model: other settings than the recipe's")
    parser.add_argument("--seed", type=_seed, default=1, help="(default: %(default)s)")
    parser.add_argument("--root", default=ROOT, help="where the run directory is made (default: %(default)s)")
    smaller = parser.add_argument_group("for a shorter one, which may not reach what is promised")
    smaller.add_argument("--sft-rows", type=_positive, metavar="N", help="traces of SFT")
    smaller.add_argument("--steps", type=_positive, metavar="N", help="steps of RL")
    smaller.add_argument("--problems", type=_positive, metavar="N", help="held-out problems that are measured")
    options = parser.parse_args()
    if options.model is None and (options.proof or options.keys):
        parser.error("--proof and key=value need --model")
    if options.proof and options.tool == "agent":
        parser.error("--proof is not for --tool agent: it measures without the tool, which is the agent's own")
    if options.sft_rows is None:
        options.sft_rows = KINDS[options.tool].sft_rows
    return options


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_SEED:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: 0 to {MAX_SEED}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: whole numbers from 1")
    return int(text)


def _prepare(quickstart: Quickstart) -> tuple[Benchmark, list[Task]]:
    """Model and data on disk; the benchmark and its held-out problems."""
    kind, options, data = quickstart.kind, quickstart.options, quickstart.data
    benchmark = Components(quickstart.compose("eval").config).benchmark(kind.benchmark)
    make_tiny_model(quickstart.inputs / "init", seed=options.seed, **kind.sizes)
    data.mkdir(exist_ok=True)
    kind.write(data, benchmark, options.sft_rows, options.seed)
    return benchmark, list(benchmark.load("test", options.problems))


def _next(quickstart: Quickstart, question: str) -> list[str]:
    """Commands to try. Where the recipe names other folders, with this quickstart's."""
    kind, data, root = quickstart.kind, quickstart.data, quickstart.options.root
    elsewhere = Path(root) != Path(ROOT)
    own, measured_on = (kind.inputs(data), kind.test(data)) if elsewhere else ([], [])
    taught = [f"model.path={quickstart.inputs / 'sft/model'}", f"data.train=[{data / 'rl.jsonl'}]", f"run.root={root}"]
    measure_it = [f"experiment={kind.name}", f"model.path={quickstart.run / 'model'}", *measured_on]
    train_it = [f"experiment={kind.name}", "branch_policy=random", "run.name=control", *(taught * elsewhere), *own]
    misleading = kind.mislead(data)
    return [
        _command("play", question, f"experiment={kind.name}", f"model.path={quickstart.run / 'model'}", *own),
        _command("eval", *measure_it, *own, "evaluate.k=4"),
        *([_command("eval", *measure_it, *misleading)] if misleading else []),
        _command("train", *train_it),
        _command("report", str(Path(root) / "control")),
        *(f"make quickstart TOOL={tool}" for tool in KINDS if tool != quickstart.options.tool),
    ]


def _command(*words: str) -> str:
    return shlex.join([".venv/bin/ramet", *words])


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("ramet").setLevel(logging.INFO)
    try:
        sys.exit(main())
    except RametError as error:
        print_problems(error)
        sys.exit(1)
