"""Does a real model learn through an agent as in the built-in loop? SmolLM2-135M, on the problems of its quickstart.

Task, agent and settings are those of `make quickstart MODEL=smollm2 TOOL=agent`. One model is taught by SFT; then it is
trained in two ways with the same problems, budgets and seed: `agent` runs the `openai-agents` program behind the
gateway, `hermes` runs Ramet's own loop with Ramet's tool `python`. Each model is measured on the same held-out problems
in the way in which it was trained; `base`, the model before SFT, and `sft` through the agent. What is finished is kept
below ROOT and skipped; a run that was stopped continues, SFT begins again.

    python bench/gateway/learning_smollm2.py --root ROOT [--seed 1] [--passes 8] [--set key=value …] [--only STAGE …]
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import learning  # first: it makes the modules of the quickstart importable
import smollm2
import word_problems
from harness import commit, write_results
from phases import Phases
from real import AGENT, PROBLEMS, ROUNDS, SAMPLES, Folders, RealQuickstart

from ramet import api
from ramet.train import training

NAME = "gateway_learning_smollm2"
BUILT_IN = ("rollout_step=hermes", "rollout_step.system_prompt=never", "tools=[python]")
WAYS = {"agent": AGENT, "hermes": replace(AGENT, keys=(AGENT.keys[0], *BUILT_IN))}


def teach(teacher: RealQuickstart, base: Path, passes: int) -> dict[str, Any]:
    """The data, and at most so many passes of SFT from the model `base`."""
    folders = teacher.folders
    shutil.rmtree(folders.inputs, ignore_errors=True)
    folders.data.mkdir(parents=True)
    word_problems.write(folders.data, teacher.options.seed, teacher.kind.row)
    return {"held_out_losses": teacher.sft_passes(base, passes)}


def train(teacher: RealQuickstart, way: str) -> dict[str, Any]:
    """One run: its rewards by step, its forks, and what was masked."""
    training.run(teacher.compose("train", teacher.folders.inputs / "sft/model", f"run.name={way}"))
    run = teacher.folders.root / way
    rollouts = [one.rollout for one in api.rollouts(run)]
    lines = [line for line in api.metrics(run) if "reward/mean" in line]
    return learning.collected(run, way, teacher.options.seed) | {
        "rollouts": len(rollouts),
        "masked": sum(not rollout.valid for rollout in rollouts),
        "several_threads": sum(len(rollout.threads) > 1 for rollout in rollouts),
        "crashed": [line.get("step/agent_crashed") for line in lines],
        "calls_mean": [round(line["rollout/tool_calls_mean"], 3) for line in lines],
    }


def measure(teacher: RealQuickstart, model: Path) -> dict[str, Any]:
    found = teacher.measure(model, teacher.folders.data / "test.jsonl", PROBLEMS)
    return {"estimate": asdict(found.estimate), **asdict(found)}


class Stages:
    """What each stage found, with its commit, seconds and peak memory; kept below `root`."""

    def __init__(self, root: Path) -> None:
        self.folder, self.found = root / "stages", dict[str, dict[str, Any]]()

    def __call__(self, name: str, work: Callable[[], dict[str, Any]]) -> None:
        """Do it, unless an earlier call did."""
        file = self.folder / f"{name}.json"
        if not file.is_file():
            phases = Phases()
            with phases(name, name):
                numbers = work()
            spent = {"commit": commit(), "seconds": phases.seconds[name], "peak_gb": phases.peak_gb[name]}
            self.folder.mkdir(exist_ok=True)
            file.write_text(json.dumps(numbers | spent), encoding="utf-8")
        self.found[name] = json.loads(file.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="where runs are made")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--passes", type=int, default=ROUNDS, help="of SFT at most (default: %(default)s)")
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value", help="other settings than the recipe's")
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="these stages, beside a process that does others")
    options = parser.parse_args()
    root = options.root.resolve()
    given = argparse.Namespace(seed=options.seed, steps=None, keys=["train.save_every=4", *options.set])
    teachers = {way: RealQuickstart(given, Folders(root, "agent"), kind) for way, kind in WAYS.items()}
    teacher, stages = teachers["agent"], Stages(root)
    base = smollm2.model_folder(learning.REPOSITORY / "runs/models")
    works = {
        "sft": partial(teach, teacher, base, options.passes),
        "sft-measured": partial(measure, teacher, teacher.folders.inputs / "sft/model"),
    }
    for way, one in teachers.items():
        works[way] = partial(train, one, way)
        works[f"{way}-measured"] = partial(measure, one, root / way / "model")
    works["base-measured"] = partial(measure, teacher, base)
    for name in options.only or works:
        stages(name, works[name])
    if not options.only:
        report(stages.found, options)


def report(found: dict[str, dict[str, Any]], options: argparse.Namespace) -> None:
    """Print what came out, and write it."""
    runs = [found[way] for way in WAYS]
    measured = {name.removesuffix("-measured"): one for name, one in found.items() if name.endswith("-measured")}
    accuracy = {name: one["estimate"] for name, one in measured.items()}
    body = {"accuracy": accuracy} | {way: values for way, values in learning.summary(runs).items() if way in WAYS}
    for name, values in body.items():
        print(name, json.dumps(values))
    settings = {
        "seed": options.seed, "passes": options.passes, "set": options.set, "problems": PROBLEMS, "samples": SAMPLES,
        "reached": learning.REACHED, "mean_of": learning.SHORT,
    }  # fmt: skip
    stages = [{"stage": name, **values} for name, values in found.items()]
    print(write_results(NAME, settings, stages, body, made_by=found["agent"]["commit"]))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("ramet").setLevel(logging.INFO)
    main()
