"""The quickstart with a real language model, and its proof: SFT on a few traces, ARPO, and what each is worth.

SFT goes over its traces until the loss of traces that it does not see has been lowest. Differences are over the same
problems, and have 95 % intervals.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import agent_problems
import smollm2
import torch
import word_problems
from folders import claim
from measure import opened, play
from phases import Phases
from rich.console import Console
from rich.table import Table
from summary import CURVES

from ramet import Benchmark, CallStatus, Rollout, Task
from ramet.components.build import Components
from ramet.config.compose import compose
from ramet.config.keys import JOBS
from ramet.config.resolved import Resolved
from ramet.errors import ConfigError
from ramet.evaluate.statistics import Estimate, over_tasks
from ramet.export.job import export_run
from ramet.models.loading import load_model
from ramet.models.torch_setup import set_up_torch
from ramet.report.html import write_report
from ramet.sft import job as sft
from ramet.sft.batches import StepPacker
from ramet.sft.loss import give_loss, inputs_of
from ramet.sft.prepare import prepare
from ramet.sft.world import ALONE
from ramet.tracking.jsonl import curves_of, read_metrics
from ramet.tracking.plots import plot_curves
from ramet.train import training as train

NAME = "smollm2"  # of the model that is fetched
ROUNDS = 8  # passes over the traces of SFT at most
SAMPLES = 2  # rollouts per problem, at temperature 1
PROBLEMS, OTHER = 60, 30
PROOF_PROBLEMS = 200
EXAMPLES = 3

logger = logging.getLogger("ramet.quickstart")


@dataclass(frozen=True, slots=True)
class RealKind:
    """What the built-in loop and an agent differ in."""

    recipe: str
    row: word_problems.Row  # of SFT
    keys: tuple[str, ...] = ()  # files that the recipe names relative to the repository


BUILT_IN = RealKind("quickstart_smollm2", word_problems.trace_row)
AGENT = RealKind("quickstart_smollm2_agent", agent_problems.trace_row, agent_problems.KEYS)


@dataclass(frozen=True, slots=True)
class Folders:
    root: Path
    name: str  # of the run

    @property
    def run(self) -> Path:
        return self.root / self.name

    @property
    def inputs(self) -> Path:
        return self.root / f"{self.name}-inputs"

    @property
    def data(self) -> Path:
        return self.inputs / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A model on problems. Shares in [0, 1] over all rollouts."""

    accuracy: list[float]  # of each problem
    valid_tool_use: float  # calls the tool, and no call is an error of the model
    calls: float  # per rollout
    answered: float
    examples: list[dict[str, object]]  # the first rollout of each of the first problems

    @property
    def estimate(self) -> Estimate:
        return over_tasks(self.accuracy)


@dataclass(frozen=True, slots=True)
class RealQuickstart:
    options: argparse.Namespace
    folders: Folders
    kind: RealKind = BUILT_IN

    @classmethod
    def of(cls, options: argparse.Namespace) -> RealQuickstart:
        kind, fetched = AGENT if options.tool == "agent" else BUILT_IN, options.model == NAME
        if not fetched and not (Path(options.model) / "config.json").is_file():
            raise ConfigError(f"--model: {options.model!r} is neither {NAME!r} nor a Hugging Face model folder")
        name = kind.recipe if fetched else kind.recipe.replace(NAME, Path(options.model).resolve().name)
        return cls(options, Folders(Path(options.root), name), kind)

    def compose(self, job: str, model: Path, *more: str) -> Resolved:
        folders = self.folders
        own = {
            "sft": [f"run.root={folders.inputs}", f"sft.data=[{folders.data / 'sft.jsonl'}]"],
            "train": [
                f"run.root={folders.root}",
                f"run.name={folders.name}",
                f"data.train=[{folders.data / 'rl.jsonl'}]",
                *([] if self.options.steps is None else [f"train.steps={self.options.steps}"]),
            ],
            "eval": [],
        }
        experiment = [f"experiment={self.kind.recipe}", *self.kind.keys]
        given = [*experiment, f"run.seed={self.options.seed}", f"model.path={model}", *own[job]]
        keys = [key for key in self.options.keys if re.split(r"[.=]", key.lstrip("+~"))[0] in JOBS[job]]
        return compose([*given, *keys, *more], job=job)

    def teach(self) -> int:
        """The whole way. Returns the exit code."""
        phases, folders = Phases(), self.folders
        first = (
            smollm2.model_folder(folders.root / "models") if self.options.model == NAME else Path(self.options.model)
        )
        for job in ("sft", "train", "eval"):
            self.compose(job, first)  # what is wrong with the options is said before anything is removed
        lock = claim(folders.run, folders.inputs)
        try:
            with phases("data", f"writing problems and traces into {folders.data}"):
                folders.data.mkdir()
                word_problems.write(folders.data, self.options.seed, self.kind.row)
            with phases("sft", f"SFT on {word_problems.SFT_PROBLEMS} traces, until the held-out loss was lowest"):
                losses = self.sft_passes(first)
            before = folders.inputs / "sft/model"
            with phases("measure_before", "measuring the model after SFT"):
                was = self._measure_both(before)
            with phases("rl", "ARPO with the tool"):
                train.run(self.compose("train", before))
            with phases("measure_after", "measuring the model after RL"):
                now = self._measure_both(folders.run / "model")
            with phases("export", "exporting, and comparing what was written"):
                export_run(folders.run, folders.inputs / "exported")
            with phases("report", "writing curves and report"):
                self._curves()
                report = write_report(folders.run)
        finally:
            lock.release()
        self._write("summary.json", _comparison(was, now), phases, losses=losses)
        self._show(was, now, phases, report)
        return 0

    def prove(self) -> int:
        """More problems, and what else could explain the difference, with the models that `teach` left."""
        phases, folders = Phases(), self.folders
        summary = folders.run / "summary.json"
        if not summary.is_file():
            raise ConfigError(f"{folders.run}: no finished quickstart to prove; run it without --proof first")
        taught = json.loads(summary.read_text(encoding="utf-8"))
        seconds, passes = taught["seconds_by_phase"], len(taught["losses"]) - 1
        passes_of_rl = math.ceil(seconds["rl"] / (seconds["sft"] / passes))
        before, after, others = folders.inputs / "sft/model", folders.run / "model", folders.data / "other_forms.jsonl"
        with phases("continued_sft", f"SFT continued for {passes_of_rl} passes, which take the time that RL took"):
            continued = self._continue_sft(before, passes_of_rl)
        number = self.options.problems or PROOF_PROBLEMS
        with phases("measure", f"measuring four settings on {number} problems, and other forms"):
            test = folders.data / "test.jsonl"
            found = self._measure_all({
                "after SFT": (before, test, number),
                "after RL": (after, test, number),
                "SFT continued": (continued, test, number),
                "after RL, without the tool": (after, test, number, "tools=[]"),
                "other forms, after SFT": (before, others, self.options.problems),
                "other forms, after RL": (after, others, self.options.problems),
            })  # fmt: skip
        pairs = {
            "RL - SFT": _difference(found["after SFT"], found["after RL"]),
            "RL - SFT continued": _difference(found["SFT continued"], found["after RL"]),
            "other forms, RL - SFT": _difference(found["other forms, after SFT"], found["other forms, after RL"]),
        }
        body = {"sft_continued_passes": passes_of_rl, "measured": _plain(found), "differences": _estimates(pairs)}
        self._write("proof.json", body, phases)
        table = Table(title=f"{number} held-out problems × {SAMPLES} samples, seed {self.options.seed}")
        for column in ("", "accuracy", "valid tool use", "calls"):
            table.add_column(column, no_wrap=True, justify="right" if column else "left")
        for name, one in found.items():
            table.add_row(name, _text(one.estimate), f"{one.valid_tool_use:.0%}", f"{one.calls:.1f}")
        for name, difference in pairs.items():
            table.add_row(name, _text(difference, signed=True), "", "")
        Console(highlight=False).print(table)
        low = (pairs["RL - SFT"].mean or 0) - (pairs["RL - SFT"].half_width or 0)
        if low <= 0:
            logger.error("not reached: the interval of RL - SFT contains 0")
        return 0 if low > 0 else 1

    def sft_passes(self, first: Path, most: int = ROUNDS) -> list[float]:
        """Train over the traces, each pass from the model of the last, until the held-out loss rises; the best stays.

        Returns the held-out losses, that of the first model too. bench/gsm8k calls this with traces of its own.
        """
        folders = self.folders
        losses, best, model = [self._held_out_loss(first)], None, first
        for number in range(1, most + 1):
            found = sft.run(self._pass(model, f"sft-{number}", number))
            losses.append(self._held_out_loss(found.model))
            logger.info("held-out loss after %d passes: %.4f", number, losses[-1])
            if losses[-1] >= min(losses[:-1]):
                shutil.rmtree(found.run)
                break
            if best is not None:
                shutil.rmtree(best.run)
            best, model = found, found.model
        if best is None:
            raise ConfigError("SFT made the held-out loss no lower: lower sft.lr")
        best.run.rename(folders.inputs / "sft")
        return losses

    def _continue_sft(self, model: Path, passes: int) -> Path:
        for old in self.folders.inputs.glob("continued-*"):
            shutil.rmtree(old)
        last = None
        for number in range(1, passes + 1):
            found = sft.run(self._pass(model, f"continued-{number}", 100 + number))
            if last is not None:
                shutil.rmtree(last)
            model, last = found.model, found.run
        return model

    def _pass(self, model: Path, name: str, number: int) -> Resolved:
        """One pass over the traces, in an order of its own."""
        return self.compose("sft", model, f"run.name={name}", f"run.seed={self.options.seed + 1000 * number}")

    def _held_out_loss(self, model: Path) -> float:
        """Mean over the trained tokens of the traces that SFT does not see."""
        resolved = self.compose("sft", model, f"sft.data=[{self.folders.data / 'sft_held_out.jsonl'}]", "run.name=loss")
        prepared, config = prepare(resolved), resolved.config
        set_up_torch(config.run)
        loaded = load_model(config.model)
        budget = config.sft.max_microbatch_tokens
        packed = StepPacker.of(loaded, loaded.device, budget=budget, world=ALONE)(prepared.examples)
        give_loss(loaded, budget)
        with torch.no_grad():
            total = sum(float(loaded(**inputs_of(batch.to(loaded.device))).loss) for batch in packed.micro_batches)
        return total / packed.n_trained

    def _measure_both(self, model: Path) -> dict[str, Measured]:
        data, number = self.folders.data, self.options.problems
        return self._measure_all({
            "held out": (model, data / "test.jsonl", number or PROBLEMS),
            "other forms": (model, data / "other_forms.jsonl", min(number or OTHER, OTHER)),
        })  # fmt: skip

    def _measure_all(self, settings: Mapping[str, tuple[Any, ...]]) -> dict[str, Measured]:
        """Measure in each setting, which is what `measure` is given, and say what came out."""
        found = {}
        for name, given in settings.items():
            found[name] = one = self.measure(*given)
            logger.info("%s: accuracy %s, valid tool use %.0f%%", name, _text(one.estimate), 100 * one.valid_tool_use)
        return found

    def measure(self, model: Path, file: Path, number: int | None, *more: str) -> Measured:
        """Measure on the first `number` problems of a file. bench/gateway calls this for its models."""
        config = self.compose("train", model, *more).config
        evaluation = self.compose("eval", model, f"benchmarks.files.params.paths=[{file}]", *more).config
        benchmark = Components(evaluation).benchmark("files")
        set_up_torch(config.run)

        async def measured() -> Measured:
            tasks = list(benchmark.load("test", number))
            async with opened(config) as rollouts:
                played = await play(rollouts, tasks, size=SAMPLES, temperature=1.0)
            return await _measured(benchmark, tasks, played)

        return asyncio.run(measured())

    def _curves(self) -> Path:
        run = self.folders.run
        (run / "sft").mkdir()  # the report shows the curves of both phases
        shutil.copy(self.folders.inputs / "sft/metrics.jsonl", run / "sft/metrics.jsonl")
        found = curves_of(read_metrics(run / "metrics.jsonl"))
        curves = {label: found[name] for name, label in CURVES.items() if name in found}
        plot_curves(run / "curves.png", curves, title="Quickstart: to compute with the tool", x="step")
        return run / "curves.png"

    def _write(self, name: str, body: dict[str, object], phases: Phases, **more: object) -> None:
        facts = {"seed": self.options.seed, "samples": SAMPLES, "seconds_by_phase": phases.seconds}
        text = json.dumps(facts | {"peak_gb": phases.peak_gb} | body | more, indent=1)
        (self.folders.run / name).write_text(text + "\n", encoding="utf-8")

    def _show(self, was: dict[str, Measured], now: dict[str, Measured], phases: Phases, report: Path) -> None:
        console = Console(highlight=False, markup=False)
        table = Table(title=f"{SAMPLES} samples a problem, 95 % intervals, seed {self.options.seed}")
        for column in ("", "after SFT", "after RL", "RL - SFT"):
            table.add_column(column, no_wrap=True, justify="right" if column else "left")
        for name, old in was.items():
            new = now[name]
            change = _text(_difference(old, new), signed=True)
            table.add_row(f"{name} ({len(old.accuracy)})", _text(old.estimate), _text(new.estimate), change)
            table.add_row("  valid tool use", f"{old.valid_tool_use:.0%}", f"{new.valid_tool_use:.0%}", "")
            table.add_row("  calls a rollout", f"{old.calls:.2f}", f"{new.calls:.2f}", "")
        console.print(table)
        spent = ", ".join(f"{phase} {seconds:.0f} s" for phase, seconds in phases.seconds.items())
        console.print(f"Time: {spent}. Peak memory: {max(phases.peak_gb.values()):.1f} GB.")
        for file in (self.folders.run / "summary.json", self.folders.run / "curves.png", report):
            console.print(f"  {file}", soft_wrap=True)
        model = self.folders.inputs / "exported"
        ask = ["play", f"experiment={self.kind.recipe}", f"model.path={model}", word_problems.QUESTION]
        prove = ["make", "quickstart", f"MODEL={self.options.model}", f"SEED={self.options.seed}", "PROOF=1"]
        lines = [shlex.join([".venv/bin/ramet", *ask])]
        if self.kind is BUILT_IN:
            lines.append(shlex.join(prove))
        console.print("Try next:", *(f"\n  {line}" for line in lines), sep="", soft_wrap=True)


async def _measured(benchmark: Benchmark, tasks: Sequence[Task], played: Sequence[Rollout]) -> Measured:
    metric = benchmark.info.metrics[0]
    scores: dict[str, list[float]] = {task.id: [] for task in tasks}
    for rollout in played:
        scores[rollout.task.id].append((await benchmark.score(rollout))[metric] or 0.0)
    return Measured(
        accuracy=[fmean(scores[task.id]) for task in tasks],
        valid_tool_use=fmean(_uses_validly(rollout) for rollout in played),
        calls=fmean(len(rollout.tool_calls) for rollout in played),
        answered=fmean(rollout.answer is not None for rollout in played),
        examples=[
            {"question": one.task.question, "response": one.response, "accuracy": scores[one.task.id][0]}
            for one in played[: EXAMPLES * SAMPLES : SAMPLES]
        ],
    )


def _uses_validly(rollout: Rollout) -> bool:
    return bool(rollout.tool_calls) and all(call.status is CallStatus.OK for call in rollout.tool_calls)


def _difference(was: Measured, now: Measured) -> Estimate:
    return over_tasks([new - old for old, new in zip(was.accuracy, now.accuracy, strict=True)])


def _comparison(was: dict[str, Measured], now: dict[str, Measured]) -> dict[str, object]:
    pairs = {name: _difference(was[name], now[name]) for name in was}
    return {"after_sft": _plain(was), "after_rl": _plain(now), "rl_minus_sft": _estimates(pairs)}


def _plain(measured: dict[str, Measured]) -> dict[str, object]:
    return {name: asdict(one) | {"estimate": asdict(one.estimate)} for name, one in measured.items()}


def _estimates(estimates: dict[str, Estimate]) -> dict[str, object]:
    return {name: asdict(one) for name, one in estimates.items()}


def _text(estimate: Estimate, *, signed: bool = False) -> str:
    mean = f"{estimate.mean:+.3f}" if signed else f"{estimate.mean:.3f}"
    return mean if estimate.half_width is None else f"{mean} ± {estimate.half_width:.3f}"
