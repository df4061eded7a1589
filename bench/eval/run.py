"""`ramet eval` with the engine `openai` against a server that computes nothing: what does measuring itself cost?

    python bench/eval/run.py [--repeats 5] [--inspect ENV/bin/python] [--verifiers ENV/bin/python]

Every sample makes one tool call of 0.2 s and two requests over HTTP; the server is a process of its own on the same
machine. Rollouts are scored, recorded with their token ids and written to disk, as in any evaluation. With `--inspect`,
the Python of an environment with inspect_ai 0.3.285 (`pip install inspect-ai==0.3.285 "openai>=3.4"`), and
`--verifiers`, of one with verifiers 0.3.1 (`pip install verifiers==0.3.1`), they take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import measured, print_table, shown, spread, write_results

HERE = Path(__file__).resolve().parent
CALL, ANSWER = "<search>the weather</search>", "<answer>sunny</answer>"
LATENCY_S = 0.2
IN_FLIGHT = {64: 2048, 256: 2048}  # -> samples; beginning and end of an evaluation have fewer in flight
PEERS = {"inspect_ai": "inspect_task.py", "verifiers": "verifiers_task.py"}
GOALS = {"share_of_ceiling_at_64": 0.7, "times_the_better_peer_at_256": 5.0, "cpu_ms_per_sample": 3.0}


@contextmanager
def server(work: Path) -> Iterator[int]:
    from ramet.testing.doubles import tiny_encoder

    encoder = tiny_encoder()
    ids = {"call": list(encoder.markup(CALL)), "answer": list(encoder.markup(ANSWER))}
    (work / "ids.json").write_text(json.dumps(ids))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(HERE / "server.py"), str(port), str(work / "ids.json")])
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


def register() -> None:
    """The tool and the benchmark of this bench, as a plugin would offer them."""
    from ramet import BenchmarkInfo, Rollout, Task, function_tool, user_prompt
    from ramet.plugins import load_plugins
    from ramet.plugins.registry import Entry

    async def search(query: str) -> str:
        """Searches."""
        await asyncio.sleep(LATENCY_S)
        return "It is sunny. " + "The forecast says so for all of the week, in the city and around it. " * 8

    class Weather:
        info = BenchmarkInfo(
            description="weather", splits=("test",), metrics=("accuracy",), source="here", licence="MIT"
        )

        def load(self, split: str, limit: int | None) -> Iterator[Task]:
            for i in range(limit or max(IN_FLIGHT.values())):
                prompt = user_prompt(f"How is the weather in city {i}?")
                yield Task(id=f"weather/{i}", prompt=prompt, answer=("sunny",))

        async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
            return {"accuracy": float(rollout.answer == "sunny" and len(rollout.tool_calls) == 1)}

    registries, ours = load_plugins().registries, dict[str, Any](config=None, plugin="bench", distribution="bench")
    make = partial(function_tool, search, name="search")
    registries.tools.add(Entry(kind=registries.tools.kind, name="weather_search", factory=make, **ours))
    registries.benchmarks.add(Entry(kind=registries.benchmarks.kind, name="weather", factory=Weather, **ours))


def play(work: Path, port: int, in_flight: int, number: int) -> dict[str, Any]:
    """One evaluation, from the first request to the last line of results on disk."""
    from ramet.cluster.launch import open_rollouts
    from ramet.config.compose import compose
    from ramet.evaluate.evaluation import prepare
    from ramet.evaluate.header import Header
    from ramet.evaluate.measure import measure
    from ramet.evaluate.partial import PartialResults

    samples, run = IN_FLIGHT[in_flight], work / f"run_{number}_{in_flight}"
    resolved = compose(
        [
            f"model.path={work / 'model'}", "engine=openai", f"engine.params.server.urls=[http://127.0.0.1:{port}/v1]",
            f"engine.params.slots={in_flight}", f"rollout.max_concurrent={in_flight}", "benchmarks=[weather]",
            "+tools.search.use=weather_search", f"tools.search.concurrency={in_flight}",
            "rollout_step.system_prompt=never", "data.max_prompt_tokens=200", "rollout.max_response_tokens=800",
        ],
        job="eval",
    )  # fmt: skip
    prepared = prepare(resolved)
    tasks = {"weather": prepared.tasks["weather"][:samples]}
    info = prepared.benchmarks["weather"].info
    header = Header(model="tiny", k=1, rules={}, settings={}, benchmarks={"weather": info}, versions={},
                    plugins=[])  # fmt: skip
    partial = PartialResults(run / "results.json", header)
    plans = {name: rules.plan(1) for name, rules in prepared.rules.items()}

    async def evaluate() -> None:
        opened = open_rollouts(resolved.config, components=prepared.components, folder=run, tools=prepared.tools)
        async with opened as rollouts:
            await measure(rollouts, prepared.benchmarks, tasks, plans=plans, partial=partial)

    with measured() as one:
        asyncio.run(evaluate())
        results = partial.finish()
    right = results.benchmarks[0].metrics[0].avg.mean
    assert right == 1.0 and results.benchmarks[0].n_judged == samples, "other work was done than was asked for"
    return {
        "peer": "ramet", "in_flight": in_flight, "samples": samples, "samples_per_s": samples / one.wall_s,
        "cpu_ms": 1000 * one.cpu_s / samples, "load": one.load,
    }  # fmt: skip


def play_peer(name: str, python: str, port: int, in_flight: int) -> dict[str, Any]:
    samples = in_flight * 2  # it takes several times as long for each
    load = os.getloadavg()[0]
    done = subprocess.run(
        [python, str(HERE / PEERS[name]), str(port), str(in_flight), str(samples)], capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{name} ended with {done.returncode}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("right") == 1.0, "other work was done than was asked for"
    return {"peer": name, "in_flight": in_flight, "samples": samples, "load": load, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="rounds; one more comes first and is not counted")
    parser.add_argument("--inspect", metavar="PYTHON", help="of an environment with inspect_ai")
    parser.add_argument("--verifiers", metavar="PYTHON", help="of an environment with verifiers")
    options = parser.parse_args()
    peers = {name: at for name, at in (("inspect_ai", options.inspect), ("verifiers", options.verifiers)) if at}
    logging.disable(logging.WARNING)
    from ramet.models.tiny import make_tiny_model

    register()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_tiny_model(work / "model", hidden=32, layers=1)
        with server(work) as port:
            for number in range(options.repeats + 1):
                for in_flight in IN_FLIGHT:
                    found = [play(work, port, in_flight, number)]
                    if 1 <= number <= 2:
                        found += [play_peer(name, python, port, in_flight) for name, python in peers.items()]
                    runs += found if number else []
    report(runs, options.repeats)


def report(runs: list[dict[str, Any]], repeats: int) -> None:
    rows, summary = [], {}
    for peer, in_flight in dict.fromkeys((run["peer"], run["in_flight"]) for run in runs):
        own = [run for run in runs if (run["peer"], run["in_flight"]) == (peer, in_flight)]
        rate, cpu = [run["samples_per_s"] for run in own], [run["cpu_ms"] for run in own]
        share = median(rate) * LATENCY_S / in_flight
        rows.append([peer, str(in_flight), shown(rate, 1), f"{share:.2f}", shown(cpu, 2)])
        summary[f"{peer} {in_flight}"] = {"samples_per_s": spread(rate), "cpu_ms": spread(cpu), "of_ceiling": share}
    print_table(("peer", "in flight", "samples/s", "of the ceiling", "CPU ms/sample"), rows)
    settings = {"repeats": repeats, "latency_s": LATENCY_S, "goals": GOALS}
    print(f"\nraw numbers: {write_results('eval', settings, runs, summary)}")


if __name__ == "__main__":
    main()
