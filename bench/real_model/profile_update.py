"""Where the update of a step goes, by torch's profiler inside the update's thread.

    python bench/real_model/profile_update.py --model FOLDER [--sides ramet-torch ramet-torch-lora]

The step is that of run.py without a tool call, in float32. Each side is a process alone; three steps are only timed,
and the fourth is profiled: seconds of the operations themselves, and what is left of the wall time between them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import print_table, write_results
from processes import SideProcess
from shape import Settings, send

TIMED = 3  # steps before the one that is profiled
FEATURES, HEAD, ADAPTER = {576, 1536, 192, 49152}, 49152, 32  # sizes of SmolLM2-135M, and the rank
PARTS = {
    "elementwise": "mul add add_ mul_ silu silu_backward pow neg div sum rsqrt mean sqrt",
    "filling, copying, gathering": "fill_ copy_ cat scatter_add_ index_select gather zero_ index_add_",
    "softmax, optimiser": "exp _log_softmax _log_softmax_backward_data _fused_adamw_",
}


def part_of(name: str, shapes: Any) -> str:
    """Name the part of an operation that `name` and the shapes of its operands belong to."""
    operation = name.removeprefix("aten::")
    if operation == "mm":
        (rows, inner), (_, columns) = shapes[:2]
        if HEAD in (rows, inner, columns):
            return "products of the head" if inner in FEATURES else "products for the gradients of weights"
        if ADAPTER in (rows, inner, columns):
            return "products of the adapters"
        return "products of the blocks" if inner in FEATURES else "products for the gradients of weights"
    if "scaled_dot_product" in operation:
        return "attention"
    return next((part for part, names in PARTS.items() if operation in names.split()), "other operations")


def profiled(settings: Settings) -> None:
    """Be a side of run.py whose last update is profiled."""
    import ramet_side
    from torch.profiler import ProfilerActivity, profile

    from ramet.policy.rank import PolicyRank

    update, seconds = PolicyRank.update, list[float]()

    def timed(rank: PolicyRank, *arguments: Any) -> dict[str, float]:
        began = time.perf_counter()
        if len(seconds) < TIMED:
            result = update(rank, *arguments)
            seconds.append(time.perf_counter() - began)
            return result
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            result = update(rank, *arguments)
        wall, parts = time.perf_counter() - began, defaultdict[str, float](float)
        for event in profiler.key_averages(group_by_input_shape=True):
            parts[part_of(event.key, event.input_shapes)] += event.self_cpu_time_total / 1e6
        parts["between operations"] = wall - sum(parts.values())
        send({"timed_s": seconds, "profiled_s": wall, "parts_s": dict(parts)})
        return result

    PolicyRank.update = timed  # type: ignore[method-assign,assignment]
    asyncio.run(ramet_side.serve(settings))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--work", type=Path, default=Path("runs/profile_update"))
    parser.add_argument("--sides", nargs="+", default=["ramet-torch", "ramet-torch-lora"])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    found = {}
    for side in options.sides:
        settings = Settings(
            side=side, model=str(options.model), work=str(options.work), precision="float32", threads=options.threads,
            questions=4, rollouts=6, tokens=64,
        )  # fmt: skip
        process = SideProcess([sys.executable, __file__], settings, options.work / f"{side}.log")
        try:
            for _ in range(TIMED):
                process.step(None)
            found[side] = process.step(None)  # sent before the step's own report
        finally:
            process.close()
    parts = sorted({part for each in found.values() for part in each["parts_s"]})
    rows = [[part, *(f"{each['parts_s'].get(part, 0.0):.1f}" for each in found.values())] for part in parts]
    rows.append(["together", *(f"{each['profiled_s']:.1f}" for each in found.values())])
    print_table(["seconds of an update", *found], rows)
    kept = ("timed_s", "profiled_s", "parts_s")
    runs = [{"side": side, **{key: each[key] for key in kept}} for side, each in found.items()]
    file = write_results("real_model_profile", {"threads": options.threads, "precision": "float32"}, runs, {})
    print(f"raw numbers in {file}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        profiled(Settings.read())
    else:
        sys.exit(main())
