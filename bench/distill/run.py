"""How many rollouts a student of a teacher needs for RL's accuracy: `quickstart_search`, from one SFT model a seed.

    python bench/distill/run.py [--seeds 1 2 3] [--arms rl distill sdpo]
    python bench/distill/run.py --collect

Stages of a seed: a model is taught by SFT, as the quickstart does; `rl` is the quickstart's recipe as it is; the other
arms train the same SFT model. The teacher of every student is the model that `rl` made of another seed, `TEACHER`, in
twice as many steps; its rollouts are counted apart. All are validated at temperature 1 on the quickstart's 200 held-out
questions. A stage that is finished is kept in `--work` and skipped, so the same command again continues. `--collect`
writes `bench/results/distill.json` and prints the tables. The rule of comparison is in bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts/quickstart"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import search
from harness import BENCH, commit, write_results

from ramet.config.compose import compose
from ramet.models.tiny import make_tiny_model
from ramet.sft import job as sft
from ramet.tracking.jsonl import read_metrics
from ramet.train import training
from ramet_benchmarks.branching.compare import Interval

SEEDS, TEACHER = (1, 2, 3), 9
LAST, SAMPLES = 3, 2  # validations whose mean is an arm's accuracy; rollouts of a question in a validation
LEVELS = (1.0, 0.95)  # of RL's accuracy
CONTROLS = ("rl", "rl_small")
ROLLOUTS, TOKENS = "rollout/rollouts", "rollout/executed_sampled_tokens"
KEPT = (
    ROLLOUTS, TOKENS, "reward/mean", "train/optimizer_steps", "advantage/teacher_kl", "advantage/hindsight_kl",
    "advantage/feedback_share",
)  # fmt: skip
SMALL = ["train.steps=40", "train.minibatches=1", "train.eval_every=4", "policy.lr=5e-4"]  # 24 rollouts a step
ARMS = {
    "rl": ["train.eval_every=2"],
    "rl_small": ["train.tasks_per_step=3", *SMALL],
    "distill": ["algorithm=distill", "branch_policy=none", "rollout.group_size=1", "train.tasks_per_step=24", *SMALL],
    "sdpo": ["algorithm=sdpo", "branch_policy=none", "train.tasks_per_step=3", *SMALL],
}
LONGER = ["train.steps=40", "train.eval_every=10"]  # of the teacher


def main() -> None:
    options = _options()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if options.collect:
        collect(options.work)
        return
    if "distill" in options.arms:
        teach(options.work, TEACHER)
        train(options.work, "rl", TEACHER, LONGER)
    for seed in options.seeds:
        teach(options.work, seed)
        for arm in options.arms:
            train(options.work, arm, seed, ARMS[arm])


def teach(work: Path, seed: int) -> None:
    """SFT as in the quickstart, unless it is finished: data and model of one seed."""
    folder, kind = work / f"seed{seed}", search.KIND
    if (folder / "sft/sft.json").is_file():  # a stopped SFT leaves its model so far, without this
        return
    shutil.rmtree(folder, ignore_errors=True)
    data = folder / "data"
    data.mkdir(parents=True)
    search.write(data, None, kind.sft_rows, seed)  # type: ignore[arg-type]
    make_tiny_model(folder / "init", seed=seed, **kind.sizes)
    overrides = [
        f"experiment={kind.name}", f"run.seed={seed}", f"run.root={folder}", "run.name=sft",
        f"model.path={folder / 'init'}", f"sft.data=[{data / 'sft.jsonl'}]", *kind.inputs(data),
    ]  # fmt: skip
    sft.run(compose(overrides, job="sft"))
    print(f"seed {seed}: SFT is done", flush=True)


def train(work: Path, arm: str, seed: int, keys: Sequence[str]) -> None:
    """One arm, unless it is finished."""
    folder = work / f"seed{seed}"
    done = folder / f"{arm}.json"
    if done.is_file():
        return
    shutil.rmtree(folder / arm, ignore_errors=True)
    wall, cpu, load = time.perf_counter(), time.process_time(), os.getloadavg()[0]
    training.run(compose(overrides(work, arm, seed, keys), job="train"))
    numbers = {
        "commit": commit(), "arm": arm, "seed": seed, "load": load,
        "wall_s": round(time.perf_counter() - wall, 1), "cpu_s": round(time.process_time() - cpu, 1),
        **curves(folder / arm),
    }  # fmt: skip
    done.write_text(json.dumps(numbers) + "\n", encoding="utf-8")
    for left in ("checkpoints", "rollouts"):
        shutil.rmtree(folder / arm / left)
    last = numbers["valid"][-1]
    print(f"seed {seed} {arm}: {last[1]:.3f} after {last[0]:.0f} rollouts, {numbers['cpu_s']:.0f} s of CPU", flush=True)


def overrides(work: Path, arm: str, seed: int, keys: Sequence[str]) -> list[str]:
    """The recipe, what the arm changes, and the validation, which is the same for all."""
    folder, kind = work / f"seed{seed}", search.KIND
    data = folder / "data"
    teacher = [f"train.teacher={work / f'seed{TEACHER}' / 'rl/model'}"] if arm == "distill" else []
    return [
        f"experiment={kind.name}", f"run.seed={seed}", f"run.root={folder}", f"run.name={arm}",
        "run.deterministic=true", f"model.path={folder / 'sft/model'}", f"data.train=[{data / 'rl.jsonl'}]",
        f"data.valid=[{data / 'test.jsonl'}]", "train.eval_first=true", f"train.eval_k={SAMPLES}",
        "train.eval_sampling.temperature=1.0", "train.save_every=100000", "trackers=[jsonl]",
        "rollout.deadline_s=1200", "rollout.step_deadline_s=1800",  # of a busy machine
        *kind.inputs(data), *teacher, *keys,
    ]  # fmt: skip


def curves(run: Path) -> dict[str, Any]:
    """`steps`: metric -> one value a step. `valid`: [rollouts trained on so far, accuracy]."""
    by_step: dict[int, dict[str, float]] = {}
    for line in read_metrics(run / "metrics.jsonl"):
        by_step.setdefault(line.step, {}).update(line.metrics)
    trained = [by_step[step] for step in sorted(by_step) if ROLLOUTS in by_step[step]]
    valid, rollouts = [], 0.0
    for step in sorted(by_step):
        rollouts += by_step[step].get(ROLLOUTS, 0.0)
        if "valid/reward" in by_step[step]:
            valid.append([rollouts, round(by_step[step]["valid/reward"], 4)])
    return {"steps": {name: [round(one[name], 4) for one in trained] for name in KEPT if name in trained[0]},
            "valid": valid}  # fmt: skip


def rollouts_to(target: float, valid: Sequence[Sequence[float]]) -> float | None:
    """Rollouts until the accuracy, straight between validations, is first the target; None: never."""
    if valid[0][1] >= target:
        return valid[0][0]
    for (before, low), (after, high) in pairwise(valid):
        if high >= target:
            return before + (after - before) * (target - low) / (high - low)
    return None


def last_accuracy(run: Mapping[str, Any]) -> float:
    return round(fmean(accuracy for _, accuracy in run["valid"][-LAST:]), 4)


def compared(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Arm -> its numbers by seed, and what it needed for each level, also over what RL needed in the same seed."""
    by_arm: dict[str, dict[int, Mapping[str, Any]]] = {}
    for run in runs:
        by_arm.setdefault(run["arm"], {})[run["seed"]] = run
    found: dict[str, dict[str, Any]] = {
        arm: {
            "rollouts": {seed: run["valid"][-1][0] for seed, run in own.items()},
            "accuracy_before": {seed: run["valid"][0][1] for seed, run in own.items()},
            "accuracy": {seed: last_accuracy(run) for seed, run in own.items()},
            "curve": _mean_curve([run["valid"] for run in own.values()]),
        }
        for arm, own in by_arm.items()
    }
    for level in LEVELS:
        targets = {seed: level * last_accuracy(run) for seed, run in by_arm["rl"].items()}
        needed = {
            arm: {seed: rollouts_to(target, own[seed]["valid"]) for seed, target in targets.items() if seed in own}
            for arm, own in by_arm.items()
        }
        for arm in found:
            over = {f"over_{control}": ratio(needed[arm], needed[control]) for control in CONTROLS if control in needed}
            found[arm][f"to_{level}"] = {"rollouts": needed[arm], **over}
    return found


def _mean_curve(curves: Sequence[Sequence[Sequence[float]]]) -> dict[float, float]:
    """Rollouts -> accuracy, the mean over seeds, which are validated after the same rollouts."""
    return {points[0][0]: round(fmean(accuracy for _, accuracy in points), 4) for points in zip(*curves, strict=True)}


def ratio(arm: Mapping[int, float | None], control: Mapping[int, float | None]) -> dict[str, Any]:
    """`seeds`: arm over control in the seeds in which both reached it; their geometric `mean`, with a 95 % interval."""
    pairs = {seed: (arm[seed], control[seed]) for seed in arm if seed in control}
    ratios = {seed: own / other for seed, (own, other) in pairs.items() if own and other}
    if not ratios:
        return {"seeds": {}}
    logs = Interval.of([math.log(one) for one in ratios.values()])
    mean, low, high = (round(math.exp(logs.mean + sign * logs.half), 3) for sign in (0, -1, 1))
    return {"seeds": {seed: round(one, 3) for seed, one in ratios.items()}, "mean": mean, "low": low, "high": high}


def collect(work: Path) -> None:
    """Write all numbers to `bench/results`, and print them."""
    paths = [work / f"seed{seed}/{arm}.json" for arm in ARMS for seed in SEEDS]
    runs = [json.loads(path.read_text()) for path in paths if path.is_file()]
    teacher = json.loads((work / f"seed{TEACHER}/rl.json").read_text())
    settings = {
        "seeds": SEEDS, "arms": ARMS, "last": LAST, "samples": SAMPLES, "questions": search.TEST_QUESTIONS,
        "teacher": {"seed": TEACHER, "keys": LONGER},
    }  # fmt: skip
    found = compared(runs)
    summary = {**found, "teacher": {"rollouts": teacher["valid"][-1][0], "accuracy": teacher["valid"][-1][1]}}
    print(write_results("distill", settings, [*runs, teacher], summary))
    for arm, numbers in found.items():
        print(arm, *(f"  {name}: {json.dumps(values)}" for name, values in numbers.items()), sep="\n")
    print("teacher", json.dumps(summary["teacher"]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=BENCH.parent / "runs/distill")
    parser.add_argument("--seeds", type=int, nargs="+", choices=SEEDS, default=SEEDS)
    parser.add_argument("--arms", nargs="+", choices=[*ARMS], default=[*ARMS])
    parser.add_argument("--collect", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
