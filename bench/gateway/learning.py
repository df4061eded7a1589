"""Does a policy learn through an agent as it does in the built-in loop? Rollouts until the same reward, paired by seed.

The task, the model and the agent are the agent quickstart's (scripts/quickstart/agent.py). For each seed one model is
taught by SFT; then it is trained in three ways with the same tasks, budgets and seeds: `hermes` runs Ramet's own loop
with the same tool as a plugin, `agent` runs the `openai-agents` program behind the gateway, both with ARPO's forks, and
`random` is the same program with forks by coin flips. A run that is there already is not repeated.

    python bench/gateway/learning.py --root ROOT [--seeds 5] [--collect]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent), str(REPOSITORY / "scripts/quickstart")]
os.environ["RAMET_PLUGINS"] = "learning_plugin"
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])

import agent  # noqa: E402
from harness import shown, write_results  # noqa: E402

from ramet import api  # noqa: E402
from ramet.models.tiny import make_tiny_model  # noqa: E402

REACHED = 0.8  # of the final reward of `hermes`
SHORT = 3  # steps whose mean is the reward at a point
BUILT_IN = ["rollout_step=hermes", "rollout_step.system_prompt=never", "tools=[search]", "tools.search.use=look_up"]
WAYS = ("hermes", "agent", "random")


def keys(way: str, data: Path) -> list[str]:
    """What the ways differ in."""
    pages = data / "pages.json"
    if way == "hermes":
        return [*BUILT_IN, f"tools.search.params.pages={pages}"]
    policy = ["branch_policy=random", "branch_policy.params.initial_rollouts=4"] if way == "random" else []
    return [*agent.KIND.inputs(data), *policy]


def teach(root: Path, seed: int) -> Path:
    """The folder of one seed, with the data and a model after SFT."""
    folder = root / f"seed{seed}"
    if (folder / "sft/sft.json").is_file():  # a stopped SFT leaves its model so far, without this
        return folder
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    agent.write(data, None, agent.KIND.sft_rows, seed)  # type: ignore[arg-type]
    make_tiny_model(folder / "init", seed=seed, **agent.KIND.sizes)
    _ramet(
        "sft",
        f"model.path={folder / 'init'}",
        f"sft.data=[{data / 'sft.jsonl'}]",
        f"run.root={folder}",
        "run.name=sft",
        f"run.seed={seed}",
        "rollout_step=hermes",
    )
    return folder


def train(folder: Path, way: str, seed: int) -> Path:
    """One run; what a stopped bench left of it continues."""
    run = folder / way
    if not (run / "model").is_dir():
        _ramet(
            "train",
            f"model.path={folder / 'sft/model'}",
            f"data.train=[{folder / 'data/rl.jsonl'}]",
            f"run.root={folder}",
            f"run.name={way}",
            f"run.seed={seed}",
            "trackers=[]",
            *keys(way, folder / "data"),
        )
    return run


def _ramet(job: str, *given: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "ramet", job, "experiment=quickstart_agent", *given], check=True, cwd=REPOSITORY
    )


def collected(run: Path, way: str, seed: int) -> dict[str, Any]:
    """The rewards of a run by step, and its forks."""
    rewards = [float(line["reward/mean"]) for line in api.metrics(run) if "reward/mean" in line]
    forks = [one for one in api.rollouts(run) if one.rollout.parent is not None]
    by_step = [float(line["rollout/forks_per_group"]) for line in api.metrics(run) if "reward/mean" in line]
    return {
        "way": way,
        "seed": seed,
        "rewards": [round(reward, 4) for reward in rewards],
        "forks": len(forks),
        "forks_unmasked": sum(one.rollout.fault is None for one in forks),
        "forks_per_group": [round(n, 3) for n in by_step],
    }


def steps_until(rewards: list[float], level: float) -> int | None:
    """The first step after which the mean of the last `SHORT` steps is at least `level`; None: never."""
    for n in range(1, len(rewards) + 1):
        if statistics.fmean(rewards[max(0, n - SHORT) : n]) >= level:
            return n
    return None


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    by_way = {way: {run["seed"]: run for run in runs if run["way"] == way} for way in WAYS}
    found: dict[str, Any] = {}
    for way in WAYS:
        steps, ratios, unmasked, least = [], [], [], []
        for seed, run in by_way[way].items():
            level = REACHED * statistics.fmean(by_way["hermes"][seed]["rewards"][-SHORT:])
            own, built_in = (steps_until(one["rewards"], level) for one in (run, by_way["hermes"][seed]))
            steps.append(own)
            ratios.append(own / built_in if own and built_in else None)
            learning = run["forks_per_group"][: max(1, own or len(run["rewards"]))]
            least.append(min(learning))
            unmasked.append(run["forks_unmasked"] / run["forks"] if run["forks"] else None)
        found[way] = {
            "final_reward": [round(statistics.fmean(run["rewards"][-SHORT:]), 4) for run in by_way[way].values()],
            "steps_until_0.8_of_hermes": steps,
            "ratio_to_hermes": ratios,
            "forks_unmasked_share": unmasked,
            "least_forks_per_group_while_learning": least,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="where runs are made")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--collect", action="store_true", help="run nothing; write the result of what is there")
    options = parser.parse_args()
    root = options.root.resolve()
    runs = []
    for seed in range(1, options.seeds + 1):
        folder = root / f"seed{seed}" if options.collect else teach(root, seed)
        for way in WAYS:
            run = folder / way if options.collect else train(folder, way, seed)
            runs.append(collected(run, way, seed))
    found = summary(runs)
    for way, values in found.items():
        print(way, json.dumps(values))
    ratios = [ratio for ratio in found["agent"]["ratio_to_hermes"] if ratio is not None]
    print("rollouts until 0.8 of the built-in loop's final reward, agent / hermes:", shown(ratios))
    file = write_results(
        "gateway_learning", {"seeds": options.seeds, "reached": REACHED, "mean_of": SHORT}, runs, found
    )
    print(file)


if __name__ == "__main__":
    main()
