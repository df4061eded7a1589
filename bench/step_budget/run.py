"""Whether a step budget saves tokens: `quickstart_search` from its SFT checkpoint with each `train.budget`.

    make quickstart                                   # leaves runs/quickstart_search-inputs
    python bench/step_budget/run.py [--inputs runs/quickstart_search-inputs] [--seeds 5] [--first 1]
    python bench/step_budget/run.py --collect

All arms of a seed have the same checkpoint, data, rollouts of a step and learning rate; there are no forks. What is
finished is kept in `--work` and skipped, so the same command again continues where it was. `--collect` writes
`bench/results/step_budget.json` and prints the table: the sampled tokens until the validation first has `TARGET`.

Of the data `clean` every task can be learned. Of `noisy` every second has a wrong reference answer, as in training sets
with faulty or hopeless tasks: its groups never have any signal. `repeated` is as `noisy` with so few tasks that each
comes again every second step, so that outcomes of earlier steps count. Validation is the same, of right tasks.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import BENCH, commit, write_results

from ramet.config.compose import compose
from ramet.tracking.jsonl import read_metrics
from ramet.train import training

GROUP, TASKS, STEPS, EVERY, LR = 8, 12, 18, 2, 1e-4
PROBLEMS, VALIDATED = {"noisy": 200, "clean": 200, "repeated": 48}, 100
TARGET = 0.8  # accuracy at temperature 1
ARMS = {
    "uniform": ["train.budget=uniform"],
    "contrast": ["train.budget=contrast", f"train.budget_tasks={2 * TASKS}"],
    "random": ["train.budget=random", f"train.budget_tasks={2 * TASKS}"],
    "resample": ["train.budget=uniform", "train.resample_rounds=2"],  # groups without signal are replaced
}
TOKENS, SILENT = "rollout/executed_sampled_tokens", "group/no_signal_share"
KEPT = ("reward/mean", SILENT, TOKENS, "rollout/rollouts", "budget/groups", "budget/tasks", "time/step_s")


def main() -> None:
    options = _options()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if options.collect:
        print(collect(options.work))
        return
    for seed in range(options.first, options.first + options.seeds):
        for data in options.data:
            for arm in options.arms:
                run(options.work, options.inputs, data, arm, seed)


def run(work: Path, inputs: Path, data: str, arm: str, seed: int) -> None:
    """Unless it is finished."""
    folder, name = work / f"seed{seed}", f"{data}_{arm}"
    done = folder / f"{name}.json"
    if done.is_file():
        return
    shutil.rmtree(folder / name, ignore_errors=True)
    write_tasks(folder, inputs, data, seed)
    wall, cpu, load = time.perf_counter(), time.process_time(), os.getloadavg()[0]
    training.run(compose(_overrides(folder, inputs, data, arm, seed), job="train"))
    numbers = {
        "commit": commit(), "data": data, "arm": arm, "seed": seed, "load": load,
        "wall_s": round(time.perf_counter() - wall, 1), "cpu_s": round(time.process_time() - cpu, 1),
        **curves(folder / name),
    }  # fmt: skip
    done.write_text(json.dumps(numbers) + "\n", encoding="utf-8")
    for left in ("checkpoints", "model", "rollouts"):
        shutil.rmtree(folder / name / left)
    print(f"seed {seed} {name}: {numbers['valid'][-1][1]:.3f}, {numbers['cpu_s']:.0f} s of CPU", flush=True)


def write_tasks(folder: Path, inputs: Path, data: str, seed: int) -> None:
    """The tasks of `data` and of the validation, drawn by the seed."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (inputs / "data/rl.jsonl").read_text(encoding="utf-8").splitlines()
    tasks = Random(f"step_budget:{seed}").sample([json.loads(line) for line in lines], VALIDATED + 200)
    valid, trained = tasks[:VALIDATED], tasks[VALIDATED:][: PROBLEMS[data]]
    if data != "clean":
        trained = [one | {"answer": trained[i - 1]["answer"]} if i % 2 else one for i, one in enumerate(trained)]
    for path, rows in ((folder / f"{data}.jsonl", trained), (folder / "valid.jsonl", valid)):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _overrides(folder: Path, inputs: Path, data: str, arm: str, seed: int) -> list[str]:
    return [
        "experiment=quickstart_search", "branch_policy=none", f"model.path={inputs / 'sft/model'}",
        f"tools.search.params.corpus={inputs / 'data/corpus.sqlite'}", f"data.train=[{folder / f'{data}.jsonl'}]",
        f"data.valid=[{folder / 'valid.jsonl'}]", f"run.root={folder}", f"run.name={data}_{arm}", f"run.seed={seed}",
        f"train.steps={STEPS}", f"train.tasks_per_step={TASKS}", f"rollout.group_size={GROUP}",
        f"policy.lr={LR}", "policy.schedule=constant", f"train.eval_every={EVERY}", "train.eval_first=true",
        "rollout.deadline_s=1200", "rollout.step_deadline_s=1800",  # of a busy machine
        "train.eval_sampling.temperature=1.0", "train.save_every=100000", "trackers=[jsonl]", *ARMS[arm],
    ]  # fmt: skip


def curves(folder: Path) -> dict[str, Any]:
    """`steps`: metric -> one value a step. `valid`: [tokens sampled in training so far, accuracy]."""
    by_step: dict[int, dict[str, float]] = {}
    for line in read_metrics(folder / "metrics.jsonl"):
        by_step.setdefault(line.step, {}).update(line.metrics)
    trained = [by_step[step] for step in sorted(by_step) if TOKENS in by_step[step]]
    valid, tokens = [], 0.0
    for step in sorted(by_step):
        tokens += by_step[step].get(TOKENS, 0.0)
        if "valid/reward" in by_step[step]:
            valid.append([tokens, round(by_step[step]["valid/reward"], 4)])
    steps = {name: [round(one[name], 4) for one in trained] for name in KEPT if name in trained[0]}
    return {"steps": steps, "valid": valid}


def tokens_to(target: float, valid: list[list[float]]) -> float | None:
    """Sampled tokens until the accuracy, straight between validations, is first the target; None: never."""
    for (before, low), (after, high) in pairwise(valid):
        if low >= target:
            return before
        if high >= target:
            return before + (after - before) * (target - low) / (high - low)
    return None


def collect(work: Path) -> str:
    """Write all numbers to `bench/results`; returns the table, in Markdown."""
    runs = [json.loads(path.read_text()) for path in sorted(work.glob("seed*/*_*.json"))]
    runs.sort(key=lambda one: (one["data"], [*ARMS].index(one["arm"]), one["seed"]))
    needed = {(one["data"], one["arm"], one["seed"]): tokens_to(TARGET, one["valid"]) for one in runs}
    rows, summary = [], dict[str, Any]()
    for data, arm, arm_runs in _by_arm(runs):
        shares = {}
        for seed in (one["seed"] for one in arm_runs):
            own, uniform = needed[data, arm, seed], needed.get((data, "uniform", seed))
            if own is not None and uniform is not None:
                shares[seed] = round(own / uniform, 3)
        found = {
            "runs": len(arm_runs),
            "reached": sum(needed[data, arm, one["seed"]] is not None for one in arm_runs),
            "share_of_uniform": shares,
            "share_mean": fmean(shares.values()) if shares else None,
            "silent": fmean(share for one in arm_runs for share in one["steps"][SILENT]),
            "tokens": fmean(one["valid"][-1][0] for one in arm_runs),
            "mean_accuracy": fmean(accuracy for one in arm_runs for _, accuracy in one["valid"][1:]),
            "last_accuracy": fmean(one["valid"][-1][1] for one in arm_runs),
        }
        summary[f"{data}/{arm}"] = found
        rows.append(
            f"| {data} | {arm} | {found['reached']} of {found['runs']} | {_shown([*shares.values()])} | "
            f"{found['silent']:.2f} | {found['tokens']:,.0f} | {found['mean_accuracy']:.3f} | "
            f"{found['last_accuracy']:.3f} |"
        )
    settings = {
        "group": GROUP, "tasks_per_step": TASKS, "steps": STEPS, "every": EVERY, "lr": LR, "target": TARGET,
        "problems": PROBLEMS, "validated": VALIDATED, "arms": ARMS,
    }  # fmt: skip
    write_results("step_budget", settings, runs, summary)
    head = "| data | arm | reached | tokens to it, uniform = 1 | groups without signal | tokens of all steps | "
    head += "mean accuracy | last |"
    return "\n".join([head, "|---" * 8 + "|", *rows])


def _by_arm(runs: list[dict[str, Any]]) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    for data, arm in dict.fromkeys((one["data"], one["arm"]) for one in runs):
        yield data, arm, [one for one in runs if (one["data"], one["arm"]) == (data, arm)]


def _shown(shares: list[float]) -> str:
    return f"{fmean(shares):.2f} ({min(shares):.2f}-{max(shares):.2f})" if shares else "-"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=BENCH.parent / "runs/step_budget")
    parser.add_argument("--inputs", type=Path, default=BENCH.parent / "runs/quickstart_search-inputs")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--data", nargs="+", choices=[*PROBLEMS], default=[*PROBLEMS])
    parser.add_argument("--arms", nargs="+", choices=[*ARMS], default=[*ARMS])
    parser.add_argument("--collect", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
