"""Does a real model learn through an agent as in the built-in loop? SmolLM2-135M, on the problems of its quickstart.

Task, agent and settings are those of `make quickstart MODEL=smollm2 TOOL=agent`. One model is taught by SFT; then it is
trained in two ways with the same problems, budgets and seed: `agent` runs the `openai-agents` program behind the
gateway, `hermes` runs Ramet's own loop with Ramet's tool `python`. Each model is measured on the same held-out problems
in the way in which it was trained, and the model after SFT through the agent. What is finished is kept below
ROOT/seedN and skipped; a run that was stopped continues, SFT begins again. `--collect` reads what is finished.

    python bench/gateway/learning_smollm2.py --root ROOT [--seeds N …] [--passes 8] [--set key=value …] [--collect]
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
STAGES = {"sft", "sft-measured", "agent", "agent-measured", "hermes", "hermes-measured"}
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


def do_stage(root: Path, name: str, work: Callable[[], dict[str, Any]]) -> None:
    """Write what a stage finds, with its commit, seconds and peak memory, below `root`; unless it is there."""
    file = root / f"stages/{name}.json"
    if not file.is_file():
        phases = Phases()
        with phases(name, name):
            numbers = work()
        spent = {"commit": commit(), "seconds": phases.seconds[name], "peak_gb": phases.peak_gb[name]}
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(numbers | spent), encoding="utf-8")


def do_seed(root: Path, seed: int, options: argparse.Namespace) -> None:
    """All stages of one seed; only what is missing is done."""
    given = argparse.Namespace(seed=seed, steps=None, keys=["train.save_every=4", *options.set])
    teachers = {way: RealQuickstart(given, Folders(root, "agent"), kind) for way, kind in WAYS.items()}
    teacher = teachers["agent"]
    works = {"sft": lambda: teach(teacher, smollm2.model_folder(learning.REPOSITORY / "runs/models"), options.passes)}
    for way, one in teachers.items():
        works[way] = partial(train, one, way)
        works[f"{way}-measured"] = partial(measure, one, root / way / "model")
    works["sft-measured"] = partial(measure, teacher, teacher.folders.inputs / "sft/model")
    for name, work in works.items():
        do_stage(root, name, work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="where runs are made")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], metavar="N")
    parser.add_argument("--passes", type=int, default=ROUNDS, help="of SFT at most (default: %(default)s)")
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value", help="other settings than the recipe's")
    parser.add_argument("--collect", action="store_true", help="do nothing new: report the seeds that are finished")
    options = parser.parse_args()
    root = options.root.resolve()
    for seed in [] if options.collect else options.seeds:
        do_seed(root / f"seed{seed}", seed, options)
    found = {seed: finished(root / f"seed{seed}") for seed in options.seeds}
    report({seed: stages for seed, stages in found.items() if STAGES <= stages.keys()}, options)


def finished(root: Path) -> dict[str, dict[str, Any]]:
    """What each finished stage of a seed found."""
    files = sorted((root / "stages").glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def report(found: dict[int, dict[str, dict[str, Any]]], options: argparse.Namespace) -> None:
    """Print what came out of each seed, and write it."""
    runs = [stages[way] for stages in found.values() for way in WAYS]
    ratios = {way: values for way, values in learning.summary(runs).items() if way in WAYS}
    accuracy = {
        name: [round(stages[f"{name}-measured"]["estimate"]["mean"], 4) for stages in found.values()]
        for name in ("sft", *WAYS)
    }
    body = {"seeds": list(found), "accuracy": accuracy, **ratios}
    for name, values in body.items():
        print(name, json.dumps(values))
    settings = {
        "passes": options.passes, "set": options.set, "problems": PROBLEMS, "samples": SAMPLES,
        "reached": learning.REACHED, "mean_of": learning.SHORT,
    }  # fmt: skip
    rows = [{"seed": seed, "stage": name, **one} for seed, stages in found.items() for name, one in stages.items()]
    print(write_results(NAME, settings, rows, body, made_by=rows[0]["commit"]))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("ramet").setLevel(logging.INFO)
    main()
