"""SmolLM2-135M through the whole system on two CPU cores: SFT, then RL under Ray with two FSDP2 ranks and vLLM.

    make test-real                                        (python bench/real_model/cluster.py [--model FOLDER])

Three steps of ARPO, 2 tasks x 4 rollouts, with the Python tool, in float32; the second and third play with weights that
vLLM was given. It fails if a rollout was masked, no tool was called, or a token's log-probability in vLLM is not the
trainer's. Seconds, memory of all processes and the commit are in `bench/results/real_cluster.json`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import print_table, write_results
from processes import PeakMemory

ROOT = Path(__file__).resolve().parents[2]
RECIPE = "experiment=quickstart_smollm2"
STEPS, RANKS = 3, 2
MOST_APART = 1e-2  # nats, of any token: both sides compute in float32
SETTINGS = [
    f"train.steps={STEPS}", "train.tasks_per_step=2", "rollout.group_size=4", "branch_policy.params.initial_rollouts=2",
    "train.old_logprobs=trainer", f"train.save_every={STEPS}", "cluster=ray", f"cluster.policy_workers={RANKS}",
    "cluster.rollout_workers=1", "engine=vllm", "engine.params.slots=8", "engine.params.kv_cache_bytes=268435456",
]  # fmt: skip


def run_job(folder: Path, *arguments: str) -> int:
    """Run a `ramet` command; returns the bytes that it and its processes took at most. Raises `SystemExit` with the end
    of its output if it failed.
    """
    print(f"ramet {arguments[0]} ...", flush=True)
    log = folder / f"{arguments[0]}.log"
    with log.open("w", encoding="utf-8") as output:
        command = [sys.executable, "-m", "ramet", *arguments]
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, env=_environment())
        memory = PeakMemory(process.pid)
        try:
            code = process.wait()
        finally:  # an interruption too
            process.terminate()
            memory.end()
    if code != 0:
        raise SystemExit(f"ramet {arguments[0]} ended with code {code}:\n{log.read_text()[-3000:]}")
    return memory.bytes


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder instead of the fetched model")
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT / "scripts/quickstart"))
    model = given.model or importlib.import_module("smollm2").model_folder(ROOT / "runs/models")
    with tempfile.TemporaryDirectory(prefix="ramet-real-") as temporary:
        folder = Path(temporary)
        importlib.import_module("word_problems").write(folder, 1)
        sft_bytes = run_job(
            folder, "sft", RECIPE, f"model.path={model.resolve()}", "sft.data=[sft.jsonl]", "run.name=sft"
        )
        rl_bytes = run_job(
            folder, "train", RECIPE, "model.path=runs/sft/model", "data.train=[rl.jsonl]", "run.name=rl", *SETTINGS
        )
        lines = (folder / "runs/rl/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines]
    problems = _problems(steps)
    _report(steps, problems, sft_peak_gb=sft_bytes / 1e9, rl_peak_gb=rl_bytes / 1e9)
    return 1 if problems else 0


def _problems(steps: list[dict[str, Any]]) -> list[str]:
    problems = [] if len(steps) == STEPS else [f"{len(steps)} steps instead of {STEPS}"]
    for step in steps:
        where = f"step {step['step']}"
        if step["rollout/masked_share"] > 0:
            problems.append(f"{where}: {step['rollout/masked_share']:.0%} of the rollouts are masked")
        if step["rollout/tool_calls_mean"] == 0:
            problems.append(f"{where}: no rollout called the tool")
        if not step.get("train/engine_gap_max", 0.0) < MOST_APART:  # not there where no row had an advantage
            problems.append(f"{where}: vLLM is {step['train/engine_gap_max']:.2e} nats from the trainer")
    if not any("train/engine_gap_max" in step for step in steps[1:]):
        problems.append("no step after the first compared vLLM with the trainer")
    return problems


def _report(steps: list[dict[str, Any]], problems: list[str], **peaks_gb: float) -> None:
    names = {"step s": "time/step_s", "rollouts s": "time/rollout_s", "update s": "time/update_s",
             "sync s": "time/sync_s", "calls": "rollout/tool_calls_mean", "gap": "train/engine_gap_max"}  # fmt: skip
    runs = [{"step": step["step"], **{name: step.get(key) for name, key in names.items()}} for step in steps]
    rows = [["-" if value is None else f"{value:.3g}" for value in run.values()] for run in runs]
    print_table(["step", *names], rows)
    print("memory of all processes:", ", ".join(f"{name} {size:.1f}" for name, size in peaks_gb.items()))
    print("\n".join(problems) or "passed")
    summary = {"passed": not problems, "problems": problems, **peaks_gb}
    write_results("real_cluster", {"settings": SETTINGS, "ranks": RANKS}, runs, summary)


if __name__ == "__main__":
    sys.exit(main())
