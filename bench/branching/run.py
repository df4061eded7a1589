"""Whether entropy branching helps: the same training from the same SFT checkpoint with different branch policies.

    python bench/branching/run.py [--kinds sums hops] [--arms none none6 arpo] [--seeds 10] [--first 11] [--steps 18]
    python bench/branching/run.py --collect
    python bench/branching/report.py

Two kinds of task (hops.py, sums.py); all arms of a seed have the same checkpoint, tasks and budget of rollouts. What is
finished is kept in `--work` and skipped, so the same command again goes on where it was; a run that was interrupted
begins again. Two processes at once share the work: each takes what nobody runs. `--collect` gathers all numbers in
`bench/results/branching_equal_calls.json`, from which `report.py` makes tables and plots. All arms of a seed come
before the next seed, so what is finished at any time compares them within seeds.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["RAMET_PLUGINS"] = "branching_plugin"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from forks import fork_numbers
from harness import commit, write_results
from runs import ARMS, GROUP, KEPT, TASKS, prepare, train, write_json
from tasks import KINDS

ROOT = Path(__file__).resolve().parents[2]
STEPS = 18
FIRST = 11  # seeds 1 to 5 are those of the first experiment, which the hypotheses come from
COMPARED = {
    "sums": ("none", "none6", "random", "shuffled", "arpo", "aepo"),
    "hops": ("none", "none6", "random", "shuffled", "arpo"),
}
SFT = (6400, 2400)  # traces of the two phases


def main() -> None:
    options = _options()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    seeds = range(options.first, options.first + options.seeds)
    jobs = [(kind, seed, arm) for seed in seeds for kind in options.kinds for arm in options.arms or COMPARED[kind]]
    if options.collect:
        print(f"raw numbers in {collect(options.work, options.kinds)}")
        return
    for kind, seed, arm in jobs:
        run(options.work, kind, arm, seed, options.steps, options.sft)


def run(work: Path, kind: str, arm: str, seed: int, steps: int, phases: Sequence[int]) -> None:
    """Unless it is finished, or another process runs it."""
    done = work / kind / f"seed{seed}" / f"{arm}.json"
    with locked(work / f"{kind}-{seed}-{arm}.lock", wait=False) as ours:
        if not ours or (done.is_file() and json.loads(done.read_text(encoding="utf-8"))["steps"] == steps):
            return
        with locked(work / f"{kind}-{seed}.lock", wait=True):
            folder = prepare(work, kind, seed, phases)
        numbers = {"commit": commit(), **train(folder, kind, arm, seed, steps)}
        write_json(done, numbers)
    accuracy = f"greedy {numbers['greedy']:.3f}, sampled {numbers['sampled']:.3f}"
    print(f"{kind} seed {seed} {arm}: {accuracy}, {numbers['wall_s']:.0f} s", flush=True)


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Whether the lock is ours; it ends with the block, or with this process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def collect(work: Path, kinds: Sequence[str]) -> Path:
    """Seeds of which all arms are finished, in one file: by kind, arm and seed."""
    runs: list[dict[str, Any]] = []
    for kind in kinds:
        files = {seed: [seed / f"{arm}.json" for arm in COMPARED[kind]] for seed in sorted(work.glob(f"{kind}/seed*"))}
        whole = [of_seed for of_seed in files.values() if all(file.is_file() for file in of_seed)]
        runs += [_finished(file, kind) for of_arm in zip(*whole, strict=True) for file in of_arm]
    settings = {"group_size": GROUP, "tasks_per_step": TASKS, "arms": ARMS}
    commits = " ".join(sorted({run["commit"] for run in runs}))
    return write_results("branching_equal_calls", settings, runs, {}, made_by=commits)


def _finished(file: Path, kind: str) -> dict[str, Any]:
    """The numbers of one run, with those of its forks, which are read from its records."""
    run: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    run["per_step"] = {name: values for name, values in run["per_step"].items() if name in KEPT}
    return {**run, "forks": fork_numbers(file.with_suffix(""), KINDS[kind])}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="default: both")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), help="default: those of the page")
    parser.add_argument("--seeds", type=int, default=10, help="how many (default: 10)")
    parser.add_argument("--first", type=int, default=FIRST, help=f"of the seeds (default: {FIRST})")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of training (default: {STEPS})")
    parser.add_argument(
        "--sft", type=int, nargs=2, default=SFT, help=f"traces of its phases (default: {SFT[0]} and {SFT[1]})"
    )
    parser.add_argument("--work", type=Path, default=ROOT / "runs/branching", help="default: runs/branching")
    parser.add_argument("--collect", action="store_true", help="only gather what is finished")
    return parser.parse_args()


if __name__ == "__main__":
    main()
