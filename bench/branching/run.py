"""Whether entropy branching helps: the same training from the same SFT checkpoint with different branch policies.

    python bench/branching/run.py [--kinds sums hops] [--arms none none6 arpo] [--seeds 10] [--first 11] [--steps 18]
    python bench/branching/run.py --kinds people [--set model.device=cuda]
    python bench/branching/run.py --collect
    python bench/branching/report.py

Two kinds of task for a tiny model (hops, sums: those of `ramet bench branching`, whose code this bench runs) and one
for a real one (people.py, bench "branching_real"); all arms of a seed have the same checkpoint, tasks and budget of
rollouts. What is finished is kept in `--work` and skipped, so the same command again continues where it was; a run that
was interrupted begins again, and a seed of another setting is refused. Several processes at once share the work: each
takes what nobody runs. `--collect` gathers all numbers in `bench/results/`, from which `report.py` makes tables and
plots; it needs the same options. All arms of a seed come before the next seed, so what is finished at any time compares
them within seeds.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["RAMET_PLUGINS"] = "branching_plugin"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from forks import fork_numbers
from harness import commit, write_results
from settings import ROOT
from tasks import KINDS, TaskKind

from ramet_benchmarks.branching.runs import KEPT, check_setting, run
from ramet_benchmarks.branching.settings import GROUP

ARMS = {
    "none": ["algorithm=grpo"],
    "none6": ["algorithm=grpo", "rollout.group_size=6"],  # as many tool calls as the arms with forks
    "random": ["algorithm=grpo", "branch_policy=random"],
    "shuffled": ["algorithm=grpo", "branch_policy=shuffled", "branch_policy.params.policy=arpo"],
    "arpo": ["algorithm=grpo", "branch_policy=arpo"],
    "arpo_tau": ["algorithm=grpo", "branch_policy=arpo", "branch_policy.params.tau=0.52"],
    "aepo": ["algorithm=aepo"],
    "arpo_release": ["algorithm=arpo_release"],
    "aepo_release": ["algorithm=aepo_release"],
    "value_guided": ["algorithm=grpo", "branch_policy=value_guided"],
}

COMPARED = {
    "sums": ("none", "none6", "random", "shuffled", "arpo", "aepo"),
    "hops": ("none", "none6", "random", "shuffled", "arpo"),
    "people": ("none6", "random", "shuffled", "arpo"),
}


def main() -> None:
    options = _options()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    kinds = [_changed(KINDS[kind], options) for kind in options.kinds]
    if options.collect:
        for name in dict.fromkeys(kind.setting.results for kind in kinds):
            print(f"raw numbers in {collect(options.work, name, kinds)}")
        return
    for offset in range(max(kind.setting.seeds for kind in kinds)):
        for kind in (one for one in kinds if offset < one.setting.seeds):
            for arm in options.arms or COMPARED[kind.name]:
                run(options.work, kind, arm, ARMS[arm], kind.setting.first + offset, {"commit": commit()})


def collect(work: Path, name: str, kinds: Sequence[TaskKind]) -> Path:
    """Seeds of which all arms are finished, in the results of this name: by kind, arm and seed."""
    runs: list[dict[str, Any]] = []
    settings: dict[str, Any] = {"group_size": GROUP, "arms": ARMS}
    for kind in (one for one in kinds if one.setting.results == name):
        settings |= {"tasks_per_step": kind.setting.tasks, "shared_keys": kind.setting.shared_keys}
        folders = [work / kind.name / f"seed{kind.setting.first + offset}" for offset in range(kind.setting.seeds)]
        files = [[folder / f"{arm}.json" for arm in COMPARED[kind.name]] for folder in folders]
        whole = [of_seed for of_seed in files if all(file.is_file() for file in of_seed)]
        for seed in {of_seed[0].parent for of_seed in whole}:
            check_setting(seed, kind)
        runs += [_finished(file, kind) for of_arm in zip(*whole, strict=True) for file in of_arm]
    commits = " ".join(sorted({run["commit"] for run in runs}))
    return write_results(name, settings, runs, {}, made_by=commits)


def _finished(file: Path, kind: TaskKind) -> dict[str, Any]:
    """The numbers of one run, with those of its forks, which are read from its records."""
    run: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    run["per_step"] = {name: values for name, values in run["per_step"].items() if name in KEPT}
    return {**run, "forks": fork_numbers(file.with_suffix(""), kind)}


def _changed(kind: TaskKind, options: argparse.Namespace) -> TaskKind:
    """With other numbers than the bench's, for a trial."""
    setting = kind.setting
    phases = setting.phases
    if options.sft:
        if len(options.sft) != len(phases):
            sys.exit(f"--sft: {kind.name} has {len(phases)} phases of SFT, and {options.sft} are given")
        phases = tuple(replace(phase, traces=n) for phase, n in zip(phases, options.sft, strict=True))
    given = {name: value for name in ("steps", "first", "seeds") if (value := getattr(options, name)) is not None}
    keys = (*setting.shared_keys, *options.set)
    return replace(kind, setting=replace(setting, phases=phases, shared_keys=keys, **given))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=["sums", "hops"], help="default: sums hops")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), help="default: those of the page")
    parser.add_argument("--seeds", type=int, help="how many (default: the kind's)")
    parser.add_argument("--first", type=int, help="of the seeds (default: the kind's)")
    parser.add_argument("--steps", type=int, help="of training (default: the kind's)")
    parser.add_argument("--sft", type=int, nargs="+", help="traces of its phases (default: the kind's)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="of SFT and training")
    parser.add_argument("--work", type=Path, default=ROOT / "runs/branching", help="default: runs/branching")
    parser.add_argument("--collect", action="store_true", help="only gather what is finished")
    return parser.parse_args()


if __name__ == "__main__":
    main()
