"""The same work in verifiers 0.3.1 (`ToolEnv`), in an environment of its own: prints one JSON line.

ENV/bin/python bench/eval/verifiers_task.py PORT IN_FLIGHT SAMPLES
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

port, in_flight, samples = map(int, sys.argv[1:])
os.environ |= {"OPENAI_API_KEY": "none", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

from datasets import Dataset  # noqa: E402
from verifiers import legacy as vf  # noqa: E402
from verifiers.legacy.types import ClientConfig  # noqa: E402


async def search(query: str) -> str:
    """Search.

    Args:
        query: what to search for
    """
    await asyncio.sleep(0.2)
    return "It is sunny."


async def is_right(completion: Any, answer: str) -> float:
    return float(answer in str(completion[-1].content))


rows = [{"question": f"How is the weather in city {i}?", "answer": "sunny"} for i in range(samples)]
environment = vf.ToolEnv(eval_dataset=Dataset.from_list(rows), tools=[search], rubric=vf.Rubric(funcs=[is_right]))
client = ClientConfig(api_key_var="OPENAI_API_KEY", api_base_url=f"http://127.0.0.1:{port}/v1")
with tempfile.TemporaryDirectory() as folder:
    wall, cpu = time.perf_counter(), time.process_time()
    options = {"independent_scoring": True, "save_results": True, "results_path": Path(folder)}
    outputs = environment.evaluate_sync(client, "tiny", max_concurrent=in_flight, **options)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
right = outputs["metadata"]["avg_reward"] if len(outputs["outputs"]) == samples else 0.0
print(json.dumps({"samples_per_s": samples / wall, "cpu_ms": 1000 * cpu / samples, "right": right}))
