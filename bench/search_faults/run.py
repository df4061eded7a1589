"""How long the event loop of 256 rollouts is held up while their search service fails in every way. Goal: 50 ms.

    python bench/search_faults/run.py [--rollouts 256] [--seconds 15]

The service is the fault server of the tests, in a process of its own. Rollouts search one after the other; every fault
of the server but 429 takes its turn, and every third answer is good; the circuit breaker is held closed, since it would
let nobody ask. Meanwhile a task sleeps 5 ms again and again: `late` is how much later it is called, `busy` the CPU time
of the loop's thread in between, in which other programs on the machine have no part. The side `idle` has no rollouts:
it shows what the machine and asyncio do by themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import json
import logging
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import BENCH, print_table, write_results

from ramet import ConfigError, InfraError, ToolCall
from ramet.testing import local_services
from ramet_tools_bing import SearchConfig, SearchTool, circuit

EVERY_S = 0.005
GOAL_S = 0.05
OURS = ("400", "401", "402", "403", "404", "407")  # stop the run instead of failing a call


def fault_server() -> ModuleType:
    file = BENCH.parent / "plugins" / "tools_bing" / "tests" / "fault_server.py"
    spec = importlib.util.spec_from_file_location("fault_server", file)
    assert spec is not None and spec.loader is not None
    module = sys.modules["fault_server"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def serve(told: Any, done: Any) -> None:
    """The server's process."""
    logging.disable(logging.ERROR)
    servers = fault_server()
    faults = [name for name in servers.BEHAVIOURS if name not in (*OURS, "good", "nothing found") and "429" not in name]
    turn = itertools.count()

    async def run() -> None:
        async with servers.FaultServer(
            lambda query, n: "good" if n % 3 == 0 else faults[next(turn) % len(faults)]
        ) as server:
            told.put(server.url)
            await asyncio.to_thread(done.wait)

    asyncio.run(run())


async def watch(late: list[float], busy: list[float]) -> None:
    while True:
        begun, cpu = time.perf_counter(), time.thread_time()
        await asyncio.sleep(EVERY_S)
        late.append(time.perf_counter() - begun - EVERY_S)
        busy.append(time.thread_time() - cpu)


async def rollout(tool: SearchTool, name: int, ends_at: float, outcomes: Counter[str]) -> None:
    for n in itertools.count():
        if time.monotonic() >= ends_at:
            return
        call = ToolCall(name="search", arguments={"query": f"rollout {name} asks {n}"}, deadline_s=10.0)
        try:
            await tool(call)
            outcomes["answered"] += 1
        except InfraError as error:
            outcomes["failed"] += 1
            await asyncio.sleep(min(1.0, error.retry_after_s or 0.05))
        except ConfigError as error:
            raise SystemExit(str(error)) from error


async def measure(url: str | None, rollouts: int, seconds: float, folder: str) -> dict[str, Any]:
    late, busy, outcomes = list[float](), list[float](), Counter[str]()
    if url is None:
        watcher = asyncio.create_task(watch(late, busy))
        await asyncio.sleep(seconds)
    else:
        config = SearchConfig(
            provider="brightdata", api_key="key", url=url, cache_folder=folder, per_s=500.0, concurrent=128,
            request_timeout_s=2.0, down_s=0.2,
        )  # fmt: skip
        tool, ends_at = SearchTool(config), time.monotonic() + seconds
        with local_services() as services:
            await tool.start(services)  # as a run does before its first rollout
        watcher = asyncio.create_task(watch(late, busy))
        await asyncio.gather(*(rollout(tool, name, ends_at, outcomes) for name in range(rollouts)))
        outcomes.update({f"requests: {name}": count for name, count in tool.client().counts.items()})
        await tool.aclose()
    watcher.cancel()
    return {
        "late": quantiles(late),
        "busy": quantiles(busy),
        "samples": len(late),
        "outcomes": dict(outcomes),
        "load": os.getloadavg()[0],
    }


def quantiles(seconds: list[float]) -> dict[str, float]:
    """Milliseconds, and how many are over the goal."""
    found = sorted(seconds)
    worst = {"p50_ms": statistics.median(found), "p99_ms": found[int(0.99 * len(found))], "max_ms": found[-1]}
    return {name: 1000 * value for name, value in worst.items()} | {"over": sum(one > GOAL_S for one in found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    circuit.LEAST_REQUESTS = circuit.MOST_IN_A_ROW = 1 << 30
    spawn = multiprocessing.get_context("spawn")
    told, done = spawn.Queue(), spawn.Event()
    server = spawn.Process(target=serve, args=(told, done), daemon=True)
    server.start()
    url = told.get()
    runs = []
    for side in ("idle", "faults", "idle", "faults"):
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(
                measure(url if side == "faults" else None, options.rollouts, options.seconds, f"{folder}/cache")
            )
        runs.append({"side": side, **found})
        print(json.dumps(runs[-1]), flush=True)
    done.set()
    columns = ["p50_ms", "p99_ms", "max_ms", "over"]
    rows = [
        [one["side"], what, *(f"{one[what][name]:.3g}" for name in columns)]
        for one in runs
        for what in ("late", "busy")
    ]
    print_table(["", "", *columns], rows)
    print(write_results("search_faults", vars(options), runs, {"goal_ms": 1000 * GOAL_S}))


if __name__ == "__main__":
    main()
