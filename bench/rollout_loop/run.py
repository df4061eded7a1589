"""Ramet's rollout loop and a bare asyncio loop, on a fake engine: what does the framework itself cost?

    python bench/rollout_loop/run.py [--repeats 7]

`speed`: one tool call of 0.2 s per rollout. `tails`: several calls, of which 5 % take 20 times as long, compared with
the same loop with a barrier per round. `failures`: 5 % of the calls raise. The loops take turns; the first round is
not counted.

Every run is made twice: by the clock on the wall, and by a clock that other programs on the machine cannot disturb (see
`quiet.py`). Medians are printed before their ranges.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import measured, print_table, shown, spread, write_results
from rollout_loop.bare import Loop
from rollout_loop.product import Product
from rollout_loop.quiet import QuietLoop
from rollout_loop.work import Fixture, Load, Played, Tools, difference

CLOCKS = {"wall": asyncio.new_event_loop, "undisturbed": QuietLoop}
UNDISTURBED_REPEATS = 15  # they take no longer than they compute, and every round draws other slow calls
HEAD = (
    "case",
    "loop",
    "wall s",
    "undisturbed s",
    "rollouts/s, undisturbed",
    "CPU ms/rollout",
    "speed / first loop",
    "undisturbed",
    "survivors",
)
GOALS = {"throughput": 0.85, "cpu_ms_per_rollout": 1.0, "rollouts_per_s": 800.0, "share_of_barrier": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A load and the loops that play it in turn. The first loop is what the others are compared with."""

    name: str
    load: Load
    loops: tuple[str, ...]
    repeats: int


def cases(repeats: int) -> list[Case]:
    few = max(2, repeats // 2)
    tails = Load(rollouts=128, calls=6, latency_s=0.03, slow_share=0.05)
    fewer_calls = Load(rollouts=128, calls=3, latency_s=0.03, slow_share=0.05)
    every = ("barrier", "bare", "ramet")
    return [
        Case(name="speed 64", load=Load(rollouts=64), loops=("bare", "ramet"), repeats=repeats),
        Case(name="speed 256", load=Load(rollouts=256), loops=("bare", "ramet"), repeats=repeats),
        Case(name="speed 256 at 0 s", load=Load(rollouts=256, latency_s=0.0), loops=("bare", "ramet"), repeats=repeats),
        Case(name="tails, 6 calls", load=tails, loops=every, repeats=few),
        Case(name="tails, 3 calls", load=fewer_calls, loops=every, repeats=few),
        Case(
            name="failures",
            load=Load(rollouts=256, fail_share=0.05),
            loops=("barrier", "bare", "ramet", "ramet, 2 retries"),
            repeats=few,
        ),
    ]


def play(loop: str, clock: str, fixture: Fixture, load: Load, seed: int) -> tuple[dict[str, Any], list[Played]]:
    """One timed run of one loop, in an event loop of its own."""
    tools = Tools(load, seed)
    if loop.startswith("ramet"):
        ours = Product(fixture, load, tools, retries=2 if "retries" in loop else 0)
        run: Callable[[], Awaitable[Any]] = ours.run
    else:
        bare = Loop(fixture, load, tools)
        run = bare.free if loop == "bare" else bare.barrier

    async def timed() -> tuple[float, Any]:
        started = asyncio.get_running_loop().time()
        result = await run()
        return asyncio.get_running_loop().time() - started, result

    with measured() as process, asyncio.Runner(loop_factory=CLOCKS[clock]) as runner:
        seconds, result = runner.run(timed())
    played = ours.played() if loop.startswith("ramet") else result
    survivors = sum(not one.lost for one in played)
    numbers = {"loop": loop, "clock": clock, "seed": seed, "seconds": seconds, "cpu_s": process.cpu_s}
    return {**numbers, "load": process.load, "survivors": survivors, "tool_runs": tools.n_runs}, played


def run_case(case: Case, fixture: Fixture) -> list[dict[str, Any]]:
    """All repeats of all loops, interleaved. Raises if two loops did not do the same work."""
    runs = []
    for repeat in range(UNDISTURBED_REPEATS + 1):
        first: list[Played] = []
        clocks = CLOCKS if repeat <= case.repeats else ("undisturbed",)
        for clock, loop in product(clocks, case.loops):
            numbers, played = play(loop, clock, fixture, case.load, seed=repeat)
            first = first or played
            wrong = None if "retries" in loop else difference(first, played)
            if wrong:
                raise AssertionError(f"{case.name}: {case.loops[0]} and {loop} did other work: {wrong}")
            if repeat:
                runs.append({"case": case.name, "round": repeat, **numbers})
    return runs


def compare(case: Case, runs: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Per loop, one value a round. Ratios are taken within a round: what burdens the machine burdens both sides."""
    n, out = case.load.rollouts, {}
    base = {clock: _column(runs, case.loops[0], clock, "seconds") for clock in CLOCKS}
    for loop in case.loops:
        wall, calm = _column(runs, loop, "wall", "seconds"), _column(runs, loop, "undisturbed", "seconds")
        out[loop] = {
            "wall_s": wall,
            "undisturbed_s": calm,
            "rollouts_per_s": [n / seconds for seconds in wall],
            "undisturbed_rollouts_per_s": [n / seconds for seconds in calm],
            "cpu_ms_per_rollout": [1000 * s / n for s in _column(runs, loop, "undisturbed", "cpu_s")],
            "speed": [b / own for b, own in zip(base["wall"], wall, strict=True)],
            "undisturbed_speed": [b / own for b, own in zip(base["undisturbed"], calm, strict=True)],
            "survivors": _column(runs, loop, "undisturbed", "survivors"),
        }
    return out


def _column(runs: list[dict[str, Any]], loop: str, clock: str, key: str) -> list[float]:
    return [float(r[key]) for r in runs if r["loop"] == loop and r["clock"] == clock]


def row_of(case: Case, loop: str, values: dict[str, list[float]]) -> list[str]:
    return [
        case.name,
        loop,
        shown(values["wall_s"]),
        shown(values["undisturbed_s"]),
        shown(values["undisturbed_rollouts_per_s"], 0),
        shown(values["cpu_ms_per_rollout"], 2),
        shown(values["speed"], 2),
        shown(values["undisturbed_speed"], 2),
        f"{median(values['survivors']):.0f}/{case.load.rollouts}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="of runs by the clock on the wall (at most 15)")
    parser.add_argument("--only", default="", help="cases whose name begins so")
    arguments = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as `ramet` does
    logging.getLogger("ramet").setLevel(logging.ERROR)  # a masked rollout is expected here
    fixture = Fixture()
    chosen = [case for case in cases(arguments.repeats) if case.name.startswith(arguments.only)]
    runs: list[dict[str, Any]] = []
    rows, summary = [], {}
    for case in chosen:
        own = run_case(case, fixture)
        runs += own
        compared = compare(case, own)
        summary[case.name] = {loop: {k: spread(v) for k, v in one.items()} for loop, one in compared.items()}
        rows += [row_of(case, loop, values) for loop, values in compared.items()]
    print_table(HEAD, rows)
    settings = {"goals": GOALS, "cases": [asdict(case) for case in chosen]}
    if not arguments.only:
        print(f"\nraw numbers: {write_results('rollout_loop', settings, runs, summary).name}")


if __name__ == "__main__":
    main()
