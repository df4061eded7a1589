"""What `train.staleness` gains: the same training run with 0 and 1, with a slow tool, the steps in between timed.

    python bench/async_step/run.py [--repeats 3] [--steps 8]

Both are ordinary runs of `ramet train` in this process, with the same model, tasks and seeds; they take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["RAMET_PLUGINS"] = "async_plugin"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import make_inputs, measured, print_table, shown, spread, write_results

from ramet.config.compose import compose
from ramet.train.training import run

LATENCIES = (0.0, 0.5, 1.0)  # seconds of a tool call, two a rollout
STALENESS = (0, 1)
TASKS, GROUP = 8, 8  # of a step


def train(work: Path, name: str, staleness: int, latency: float, steps: int) -> list[dict[str, float]]:
    """Metrics of every step but the first, which fills the pipeline, and the last, which has no next one."""
    overrides = [
        f"model.path={work / 'model'}", f"data.train=[{work / 'tasks.jsonl'}]", f"run.root={work}", f"run.name={name}",
        "run.threads=1", "rollout_step=calls", "rollout_step.system_prompt=never", "tools=[slow]",
        f"tools.slow.params.latency_s={latency}", "rewards=[even_bytes]", f"rollout.group_size={GROUP}",
        f"train.tasks_per_step={TASKS}", "rollout.max_response_tokens=256", "data.max_prompt_tokens=32",
        f"train.steps={steps}", "train.save_every=1000", f"train.staleness={staleness}", "trackers=[jsonl]",
        "policy.lr=0.0005", "engine.params.slots=64", "rollout.max_concurrent=64",
    ]  # fmt: skip
    run(compose(overrides, job="train"))
    lines = [json.loads(line) for line in (work / name / "metrics.jsonl").read_text().splitlines()]
    return lines[1:-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_inputs(work)
        for repeat in range(options.repeats + 1):
            for latency in LATENCIES:
                for staleness in STALENESS:
                    with measured() as took:
                        steps = train(work, f"{repeat}_{latency}_{staleness}", staleness, latency, options.steps)
                    if repeat:
                        runs.append(_numbers(steps, latency, staleness) | {"load": took.load, "cpu_s": took.cpu_s})
    summary, rows = _summary(runs)
    print_table(("tool s", "staleness", "step s", "tokens trained", "lag", "TIS weight", "gain"), rows)
    path = write_results("async_step", {"repeats": options.repeats, "steps": options.steps}, runs, summary)
    print(f"raw numbers in {path}")


def _numbers(steps: list[dict[str, float]], latency: float, staleness: int) -> dict[str, Any]:
    def mean(name: str) -> float:
        return statistics.fmean(step[name] for step in steps)

    return {
        "latency_s": latency,
        "staleness": staleness,
        "step_s": mean("time/step_s"),
        "wait_for_rollouts_s": mean("time/rollout_s"),
        "update_s": mean("time/update_s"),
        "trained_tokens": mean("train/tokens"),
        "lag": mean("train/version_lag_mean"),
        "tis_weight": mean("train/tis_weight"),
    }


def _summary(runs: list[dict[str, Any]]) -> tuple[dict[str, Any], list[list[str]]]:
    summary: dict[str, Any] = {}
    rows = []
    for latency in LATENCIES:
        of = {s: [r for r in runs if (r["latency_s"], r["staleness"]) == (latency, s)] for s in STALENESS}
        gains = [a["step_s"] / b["step_s"] for a, b in zip(of[0], of[1], strict=True)]
        summary[f"{latency:g} s"] = {"gain": spread(gains)}
        for staleness, own in of.items():
            rows.append([
                f"{latency:g}", str(staleness), shown([r["step_s"] for r in own]),
                f"{statistics.fmean(r['trained_tokens'] for r in own):.0f}",
                f"{statistics.fmean(r['lag'] for r in own):.2f}",
                f"{statistics.fmean(r['tis_weight'] for r in own):.3f}",
                shown(gains, 2) if staleness else "",
            ])  # fmt: skip
    return summary, rows


if __name__ == "__main__":
    main()
