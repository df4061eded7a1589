"""What a training step costs its driver, in seconds and memory, as rollouts grow: rows, advantages, what ranks read,
the record.

    python bench/driver/run.py [--sizes 4096x4096,4096x16384,64x131072,128x131072,256x131072] [--repeats 1]

Groups of 16 rollouts with made-up tokens of the stated length, one call of a tool in each. `step` is an estimator that
is called with the complete step, as all were before; `group` is the same estimator called by group. Both must give the
same advantages. Each side of each size has a process of its own, whose peak memory is its own; they take turns.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SIZES = "4096x4096,4096x16384,64x131072,128x131072,256x131072"
GROUP, PROMPT, RESULT = 16, 512, 256  # rollouts of a group; tokens of its prompt, of a tool's result
SIDES = ("step", "group")
PARTS = ("rows", "advantages", "pack", "read", "record")
GB = 2.0**30


def groups_of(n_rollouts: int, n_tokens: int) -> list[Any]:
    """Scored groups whose rollouts have `n_tokens` after the prompt, those of a tool included."""
    import numpy as np

    from ramet.rollout.scoring import ScoredGroup, ScoredRollout
    from ramet.types import Origin, Rollout, Segment, SegmentKind, StopReason, Task, user_prompt

    rng = np.random.default_rng(0)

    def segment(kind: SegmentKind, n: int, turn: int = 0) -> Segment:
        sampled = kind is SegmentKind.TURN
        floats = [array("f", rng.random(n, np.float32).tobytes()) for _ in range(2)] if sampled else [None, None]
        return Segment(
            origin=Origin.SAMPLED if sampled else Origin.INSERTED,
            kind=kind,
            turn=turn,
            text=rng.bytes(2 * n).hex(),
            token_ids=array("i", rng.integers(0, 150_000, n, np.int32).tobytes()),
            logprobs=floats[0],
            entropies=floats[1],
            policy_version=0 if sampled else None,
        )

    groups, half = [], (n_tokens - RESULT) // 2
    for number in range(n_rollouts // GROUP):
        task, prompt = Task(id=str(number), prompt=user_prompt("?")), segment(SegmentKind.PROMPT, PROMPT)
        rollouts = []
        for i in range(GROUP):
            own = (
                segment(SegmentKind.TURN, half),
                segment(SegmentKind.RESULT, RESULT),
                segment(SegmentKind.TURN, half, 1),
            )
            rollout = Rollout(id=str(i), task=task, segments=(prompt, *own), stop=StopReason.ANSWER)
            rollouts.append(ScoredRollout(rollout=rollout, reward=float(i % 2)))
        groups.append(ScoredGroup(task=task, rollouts=tuple(rollouts)))
    return groups


def measure(side: str, n_rollouts: int, n_tokens: int) -> dict[str, Any]:
    """One step's work in the driver, and what a rank on its node does to read the batch."""
    from ramet.algorithms.advantages.config import GrpoConfig
    from ramet.algorithms.advantages.grpo import Grpo
    from ramet.policy.batching.rows import rows_of
    from ramet.policy.batching.train_batch import TrainBatch
    from ramet.train.learning import estimate
    from ramet.train.recording import record_path, record_step
    from ramet.train.step_rollouts import PlayedStep
    from ramet.types import AdvantageEstimator

    estimator = cast(AdvantageEstimator, Grpo(GrpoConfig()))
    estimator.scope = "batch" if side == "step" else "group"

    groups = groups_of(n_rollouts, n_tokens)
    seconds: dict[str, float] = {}
    memory: dict[str, float] = {"groups": peak()}

    @contextmanager
    def part(name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        seconds[name], memory[name] = time.process_time() - began, peak()

    with part("rows"):
        rows = rows_of(groups)
    with part("advantages"):
        batch, _ = estimate(estimator, TrainBatch(rows=rows))
    with part("pack"):  # as Ray does: arrays are not copied into the stream
        buffers: list[pickle.PickleBuffer] = []
        packed = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    with part("read"):
        pickle.loads(packed, buffers=buffers)
    sums = hashlib.sha256(b"".join(values.tobytes() for values in batch.advantages)).hexdigest()
    with tempfile.TemporaryDirectory() as folder, part("record"):
        record_step(Path(folder), 1, PlayedStep(groups=groups, replaced=[]), batch)
        size = record_path(Path(folder), 1).stat().st_size
    return {
        "side": side,
        "rollouts": n_rollouts,
        "tokens": n_tokens,
        "cpu_s": seconds,
        "peak_gb": memory,
        "record_gb": size / GB,
        "advantages": sums,
    }


def peak() -> float:
    """The most memory that this process has had, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=SIZES, help="ROLLOUTSxTOKENS, …")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--one", nargs=3, metavar=("SIDE", "ROLLOUTS", "TOKENS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        side, rollouts, tokens = options.one
        print(json.dumps(measure(side, int(rollouts), int(tokens))))
        return
    from harness import print_table, write_results

    runs = []
    for size in options.sizes.split(","):
        for repeat in range(options.repeats):
            for side in SIDES if repeat % 2 == 0 else SIDES[::-1]:
                given = [__file__, "--one", side, *size.split("x")]
                done = subprocess.run([sys.executable, *given], check=True, capture_output=True, text=True)
                runs.append(json.loads(done.stdout.splitlines()[-1]))
            assert runs[-1]["advantages"] == runs[-2]["advantages"], f"the two sides differ: {size}"
    print_table(
        ["rollouts x tokens", "side", *(f"{part}, CPU s" for part in PARTS), "advantages add, GB", "peak, GB"],
        [
            [
                f"{run['rollouts']} x {run['tokens']}",
                run["side"],
                *(f"{run['cpu_s'][part]:.2f}" for part in PARTS),
                f"{run['peak_gb']['advantages'] - run['peak_gb']['rows']:.2f}",
                f"{run['peak_gb']['record']:.2f}",
            ]
            for run in runs
        ],
    )
    write_results("driver", {"sizes": options.sizes, "group": GROUP, "repeats": options.repeats}, runs, {})


if __name__ == "__main__":
    main()
