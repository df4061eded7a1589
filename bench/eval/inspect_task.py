"""The same work in inspect_ai 0.3.285, in an environment of its own: prints one JSON line.

ENV/bin/python bench/eval/inspect_task.py PORT IN_FLIGHT SAMPLES
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time

port, in_flight, samples = map(int, sys.argv[1:])
os.environ |= {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1"}

from inspect_ai import Task, eval  # noqa: E402
from inspect_ai.dataset import MemoryDataset, Sample  # noqa: E402
from inspect_ai.scorer import includes  # noqa: E402
from inspect_ai.solver import generate, use_tools  # noqa: E402
from inspect_ai.tool import Tool, tool  # noqa: E402


@tool  # type: ignore[untyped-decorator]
def search() -> Tool:
    async def execute(query: str) -> str:
        """Search.

        Args:
            query: what to search for
        """
        await asyncio.sleep(0.2)
        return "It is sunny."

    return execute


dataset = MemoryDataset([Sample(input=f"How is the weather in city {i}?", target="sunny") for i in range(samples)])
task = Task(dataset=dataset, solver=[use_tools(search()), generate()], scorer=includes())
with tempfile.TemporaryDirectory() as folder:
    wall, cpu = time.perf_counter(), time.process_time()
    limits = {"max_connections": in_flight, "max_samples": in_flight, "max_tasks": 1}
    # Compatible servers have chat completions, and not all the API of responses that is the default.
    options = {"model_args": {"responses_api": False}, "log_dir": folder, "display": "none"}
    (log,) = eval(task, model="openai/tiny", **options, **limits)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
if log.status != "success" or log.results is None:
    sys.exit(f"inspect_ai: {log.status}: {log.error.message if log.error else 'no results'}")
right = log.results.scores[0].metrics["accuracy"].value
print(json.dumps({"samples_per_s": samples / wall, "cpu_ms": 1000 * cpu / samples, "right": right}))
