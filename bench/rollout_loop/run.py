"""Ramet's rollout loop beside a bare asyncio loop, on a fake engine: what does the framework itself cost?

    python bench/rollout_loop/run.py [--repeats 7]

`speed`: one tool call of 0.2 s per rollout. `tails`: several calls, of which 5 % take 20 times as long, beside the same
loop with a barrier per round. `failures`: 5 % of the calls raise. The loops take turns; the first round is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import measured, print_table, shown, spread, write_results
from rollout_loop.bare import Loop
from rollout_loop.product import Product
from rollout_loop.work import Load, Parts, Played, Tools, difference

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
    tails = Load(rollouts=128, calls=6, latency_s=0.04, slow_share=0.05)
    fewer_calls = Load(rollouts=128, calls=3, latency_s=0.04, slow_share=0.05)
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


def play(loop: str, parts: Parts, load: Load, seed: int) -> tuple[dict[str, Any], list[Played]]:
    """One timed run of one loop, in an event loop of its own."""
    tools = Tools(load, seed)
    if loop.startswith("ramet"):
        product = Product(parts, load, tools, retries=2 if "retries" in loop else 0)
        run: Callable[[], Awaitable[Any]] = product.run
    else:
        bare = Loop(parts, load, tools)
        run = bare.free if loop == "bare" else bare.barrier

    async def timed() -> tuple[dict[str, Any], Any]:
        with measured() as time:
            result = await run()
        return asdict(time), result

    numbers, result = asyncio.run(timed())
    played = product.played() if loop.startswith("ramet") else result
    survivors = sum(not one.lost for one in played)
    return {"loop": loop, "seed": seed, **numbers, "survivors": survivors, "tool_runs": tools.n_runs}, played


def run_case(case: Case, parts: Parts) -> list[dict[str, Any]]:
    """All repeats of all loops, interleaved. Raises if two loops did not do the same work."""
    runs = []
    for repeat in range(case.repeats + 1):
        first: list[Played] = []
        for loop in case.loops:
            numbers, played = play(loop, parts, case.load, seed=repeat)
            first = first or played
            wrong = None if "retries" in loop else difference(first, played)
            if wrong:
                raise AssertionError(f"{case.name}: {case.loops[0]} and {loop} did other work: {wrong}")
            if repeat:
                runs.append({"case": case.name, "round": repeat, **numbers})
    return runs


def summary_of(case: Case, runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Per loop. Ratios are taken round by round, so that what burdens the machine burdens both sides."""
    walls = {loop: [r["wall_s"] for r in runs if r["loop"] == loop] for loop in case.loops}
    out = {}
    for loop in case.loops:
        own = [r for r in runs if r["loop"] == loop]
        ratios = [base / wall for base, wall in zip(walls[case.loops[0]], walls[loop], strict=True)]
        out[loop] = {
            "wall_s": spread(walls[loop]),
            "rollouts_per_s": spread([case.load.rollouts / wall for wall in walls[loop]]),
            "cpu_ms_per_rollout": spread([1000 * r["cpu_s"] / case.load.rollouts for r in own]),
            f"speed_relative_to_{case.loops[0]}": spread(ratios),
            "survivors": spread([r["survivors"] for r in own]),
        }
    return out


def row_of(case: Case, loop: str, runs: list[dict[str, Any]]) -> list[str]:
    own = [r for r in runs if r["loop"] == loop]
    base = [r["wall_s"] for r in runs if r["loop"] == case.loops[0]]
    n = case.load.rollouts
    return [
        case.name,
        loop,
        shown([r["wall_s"] for r in own]),
        shown([n / r["wall_s"] for r in own], 0),
        shown([1000 * r["cpu_s"] / n for r in own], 2),
        shown([b / r["wall_s"] for b, r in zip(base, own, strict=True)], 2),
        f"{median(r['survivors'] for r in own):.0f}/{n}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="cases whose name begins so")
    arguments = parser.parse_args()
    logging.getLogger("ramet").setLevel(logging.ERROR)  # a masked rollout is expected here
    parts = Parts()
    chosen = [case for case in cases(arguments.repeats) if case.name.startswith(arguments.only)]
    runs: list[dict[str, Any]] = []
    rows, summary = [], {}
    for case in chosen:
        own = run_case(case, parts)
        runs += own
        summary[case.name] = summary_of(case, own)
        rows += [row_of(case, loop, own) for loop in case.loops]
    print_table(("case", "loop", "wall s", "rollouts/s", "CPU ms/rollout", "speed / first loop", "survivors"), rows)
    settings = {"goals": GOALS, "cases": [asdict(case) for case in chosen]}
    if not arguments.only:
        print(f"\nraw numbers: {write_results('rollout_loop', settings, runs, summary).name}")


if __name__ == "__main__":
    main()
