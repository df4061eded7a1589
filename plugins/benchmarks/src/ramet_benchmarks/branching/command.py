"""`ramet bench branching POLICY …`: train with each branch policy and its controls, and write the leaderboard."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

from ramet import ConfigError

TASKS = ("hops", "sums")
WORK, SMOKE_WORK = Path("runs/bench_branching"), Path("runs/bench_branching_smoke")
NEEDED = {"torch": "ramet[train]", "ramet_rewards": "ramet-rewards"}
SMOKE: dict[str, Any] = {"tasks": 2, "tested": 4, "validated": 4, "steps": 2, "every": 2}
EPILOG = """
POLICY is the name of an installed branch policy, with options after a colon: arpo, 'arpo:tau=0.52;branches=2'.
Controls are run with it: none (8 rollouts without forks), none6 (6: about as many tool calls as with forks), random,
and, for a policy that reads entropies, shuffled. All arms of a seed have the same checkpoint, tasks, learning rate and
number of updates. The same command again continues, and several at once share the work.
"""


class BenchArguments(argparse.ArgumentParser):
    """Parser that raises `ConfigError` instead of leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see `{self.prog} --help`")


def bench(arguments: Sequence[str]) -> int:
    """measure branch policies at equal tool calls and tokens, against controls"""
    options = _parser().parse_args(arguments)
    options.work = options.work or (SMOKE_WORK if options.smoke else WORK)
    options.seeds = options.seeds or (1 if options.smoke else 3)
    if absent := [package for module, package in NEEDED.items() if find_spec(module) is None]:
        raise ConfigError(
            f"ramet bench branching needs {' and '.join(absent)}: pip install 'ramet-benchmarks[branching]'"
        )
    logging.getLogger("ramet").setLevel(logging.WARNING)
    hints = logging.getLogger("ramet.runs.stopped")  # they are of one arm's training
    hints.setLevel(logging.ERROR)
    try:
        runs = _run_all(options)
    except KeyboardInterrupt:
        print("the same command again continues", file=sys.stderr)
        raise
    finally:
        hints.setLevel(logging.NOTSET)
    if runs is None:
        print("some arms are being run by other processes; the same command again writes the leaderboard")
        return 0
    print(_write(options, runs))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = BenchArguments(prog="ramet bench", description=bench.__doc__)
    formatter = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    summary = "a leaderboard of branch policies"
    add = commands.add_parser("branching", help=summary, description=summary, epilog=EPILOG, formatter_class=formatter)
    add.add_argument("policies", nargs="+", metavar="POLICY", help="branch policies to measure")
    add.add_argument("--tasks", nargs="+", choices=TASKS, default=["hops"], help="kinds of task (default: hops)")
    add.add_argument("--seeds", type=_positive, help="checkpoints, each of a seed (default: 3; with --smoke 1)")
    add.add_argument("--first", type=int, default=1, help="first seed (default: 1)")
    add.add_argument("--steps", type=_positive, help="training steps of an arm (default: 18)")
    add.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="configuration of SFT and of all arms")
    add.add_argument(
        "--work", type=Path, help=f"folder of runs and results (default: {WORK}, with --smoke {SMOKE_WORK})"
    )
    add.add_argument("--smoke", action="store_true", help="tiny numbers: tries every stage, measures nothing")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number of at least 1")
    return int(text)


def _kind(name: str, options: argparse.Namespace) -> Any:
    """Return the kind of task with the numbers of this command."""
    from ramet_benchmarks.branching.kinds import KINDS  # with torch

    kind = KINDS[name]
    setting = replace(kind.setting, shared_keys=(*kind.setting.shared_keys, *options.set))
    if options.smoke:
        setting = replace(setting, phases=(replace(setting.phases[-1], traces=64),), **SMOKE)
    return replace(kind, setting=replace(setting, steps=options.steps or setting.steps))


def _run_all(options: argparse.Namespace) -> list[dict[str, Any]] | None:
    """Return the numbers of all arms, seed by seed; None if other processes still run some."""
    from ramet_benchmarks.branching.arms import arms_of
    from ramet_benchmarks.branching.runs import run

    seeds = range(options.first, options.first + options.seeds)
    planned = list(product(seeds, dict.fromkeys(options.tasks), arms_of(options.policies)))
    made_by = {name: version(name) for name in ("ramet", "ramet-benchmarks")}
    runs = []
    for number, (seed, name, arm) in enumerate(planned, start=1):
        print(f"{number} of {len(planned)}: {arm.name}, seed {seed}, {name}", flush=True)
        runs.append(run(options.work, _kind(name, options), arm.name, arm.keys, seed, made_by))
    return None if None in runs else [numbers for numbers in runs if numbers is not None]


def _write(options: argparse.Namespace, runs: Sequence[dict[str, Any]]) -> str:
    """Write `leaderboard.json`, `leaderboard.md` and a plot for each task; return the page."""
    from ramet_benchmarks.branching.arms import FEWER
    from ramet_benchmarks.branching.compare import by_arm
    from ramet_benchmarks.branching.figures import plot_curves
    from ramet_benchmarks.branching.leaderboard import against_chance, board, markdown
    from ramet_benchmarks.branching.runs import write_json

    parts = ["These numbers measure nothing: --smoke."] if options.smoke else []
    for name in dict.fromkeys(options.tasks):
        arms = by_arm(runs, name)
        plot = options.work / f"{name}.png"
        plot_curves(plot, arms, FEWER, f"{name}: accuracy on unseen problems, with 95 % intervals; grey: {FEWER}")
        parts += [f"## {name}", markdown(board(arms)), markdown(against_chance(arms)), f"![curves]({plot.name})"]
    page = "\n\n".join(parts) + "\n"
    (options.work / "leaderboard.md").write_text(page, encoding="utf-8")
    write_json(options.work / "leaderboard.json", {"smoke": options.smoke, "steps": options.steps, "runs": list(runs)})
    return page + f"\n{options.work / 'leaderboard.md'}, leaderboard.json and plots are written"
