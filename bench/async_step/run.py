"""What `train.staleness` gains: the same training run with several, the steps in between timed.

    python bench/async_step/run.py [--repeats 3] [--steps 8]

`tails`: tool calls of which 5 % take 20 times as long as the others, and longer than the engine needs for a whole step.
`short_tails`: the same with calls of half that time. `even`: calls that take about equally long. `update`: no waiting
in tools, and an update that takes longer than the rollouts. All are ordinary runs of `ramet train` in this process,
with the same model, tasks and seeds; they take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["RAMET_PLUGINS"] = "async_plugin"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import make_inputs, measured, print_table, shown, spread, write_results

from ramet.config.compose import compose
from ramet.train.training import run

TASKS, GROUP = 8, 8  # of a step
ROOM = 2 * TASKS * GROUP  # rollouts at once: those of two steps
GOALS = {
    name: {"busy_share": 0.9, "step_ratio": 0.6} for name in ("tails", "short_tails")
}  # at a staleness of 2 and more
COLUMNS = {
    "step_s": "time/step_s",
    "wait_for_rollouts_s": "time/rollout_s",
    "update_s": "time/update_s",
    "busy_share": "engine/busy_share",
    "trained_tokens": "train/tokens",
    "lag": "train/version_lag_mean",
    "tis_effective": "train/tis_effective",
    "waiting_groups": "group/waiting",
}
HEAD = ("case", "S", "step s", "of S = 0", "engine busy", "update s", "tokens", "lag", "effective", "groups waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Tools and update of one run, and the values of `train.staleness` that are compared; 0 is the first."""

    name: str
    keys: tuple[str, ...]
    staleness: tuple[int, ...]


CASES = (
    Case(
        name="tails",
        keys=("tools.slow.params.latency_s=0.1", "tools.slow.params.slow_share=0.05"),
        staleness=(0, 1, 2, 4),
    ),
    Case(
        name="short_tails",
        keys=("tools.slow.params.latency_s=0.05", "tools.slow.params.slow_share=0.05"),
        staleness=(0, 1, 2, 4),
    ),
    Case(name="even", keys=("tools.slow.params.latency_s=0.5",), staleness=(0, 1, 2)),
    Case(name="update", keys=("tools.slow.params.latency_s=0", "train.epochs=4"), staleness=(0, 1, 2)),
)


def train(work: Path, name: str, case: Case, staleness: int, steps: int) -> list[dict[str, float]]:
    """Metrics of `steps` steps: without those in which the window fills, and those in which it empties."""
    edge = staleness + 1
    overrides = [
        f"model.path={work / 'model'}", f"data.train=[{work / 'tasks.jsonl'}]", f"run.root={work}", f"run.name={name}",
        "run.threads=1", "rollout_step=calls", "rollout_step.system_prompt=never", "tools=[slow]",
        "rewards=[even_bytes]", f"rollout.group_size={GROUP}", f"train.tasks_per_step={TASKS}",
        "rollout.max_response_tokens=256", "data.max_prompt_tokens=32", f"train.steps={steps + 2 * edge}",
        "train.save_every=1000", f"train.staleness={staleness}", "trackers=[jsonl]", "policy.lr=0.00001",
        f"engine.params.slots={ROOM}", f"rollout.max_concurrent={ROOM}", *case.keys,
    ]  # fmt: skip
    run(compose(overrides, job="train"))
    lines = [json.loads(line) for line in (work / name / "metrics.jsonl").read_text().splitlines()]
    return lines[edge:-edge]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--only", default="", help="cases whose name begins so")
    options = parser.parse_args()
    cases = [case for case in CASES if case.name.startswith(options.only)]
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_inputs(work)
        for repeat in range(options.repeats):
            for case in cases:
                for staleness in case.staleness:
                    with measured() as took:
                        steps = train(work, f"{case.name}_{repeat}_{staleness}", case, staleness, options.steps)
                    own = {"case": case.name, "round": repeat, "staleness": staleness, **_numbers(steps)}
                    runs.append(own | {"load": took.load, "cpu_s": took.cpu_s})
    summary, rows = _summary(cases, runs)
    print_table(HEAD, rows)
    settings = {"repeats": options.repeats, "steps": options.steps, "goals": GOALS}
    path = write_results("async_step", settings, runs, summary)
    print(f"raw numbers in {path}")


def _numbers(steps: list[dict[str, float]]) -> dict[str, float]:
    """Means over the steps; without staleness no group waits."""
    return {name: statistics.fmean(step.get(metric, 0.0) for step in steps) for name, metric in COLUMNS.items()}


def _summary(cases: list[Case], runs: list[dict[str, Any]]) -> tuple[dict[str, Any], list[list[str]]]:
    """The ratio of step times is taken within a round."""
    summary: dict[str, Any] = {}
    rows = []
    for case in cases:
        of = {s: [r for r in runs if (r["case"], r["staleness"]) == (case.name, s)] for s in case.staleness}
        for staleness, own in of.items():
            column = {name: [r[name] for r in own] for name in COLUMNS}
            ratios = [one["step_s"] / first["step_s"] for one, first in zip(own, of[0], strict=True)]
            key = f"{case.name}, S = {staleness}"
            summary[key] = {"step_ratio": spread(ratios), "busy_share": spread(column["busy_share"])}
            rows.append([
                case.name, str(staleness), shown(column["step_s"]), shown(ratios, 2), shown(column["busy_share"], 2),
                shown(column["update_s"], 2), f"{statistics.fmean(column['trained_tokens']):.0f}",
                f"{statistics.fmean(column['lag']):.2f}", f"{statistics.fmean(column['tis_effective']):.3f}",
                f"{statistics.fmean(column['waiting_groups']):.1f}",
            ])  # fmt: skip
    return summary, rows


if __name__ == "__main__":
    main()
