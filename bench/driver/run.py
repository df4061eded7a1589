"""What a training step costs its driver, in seconds and memory, as rollouts grow: groups, rows, advantages, what ranks
read, the record.

    python bench/driver/run.py [--sizes 4096x4096,4096x16384,64x131072,128x131072,256x131072]
        [--sides step,group,workers] [--repeats 1] [--write]

Groups of 16 rollouts with made-up tokens of the stated length, one call of a tool in each. They are made in a process
of their own, which stands for all rollout workers, and sent to the driver's. `step` is an estimator that is called with
the complete step, as all were before; `group` is the same estimator called by group. Both make rows in the driver.
`workers` is `group` where the workers make them. All must give the same advantages. Each side of each size has
processes of its own, whose peak memory is their own; they take turns. `--write` writes the record in the driver, too,
as `cluster=local` does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from ramet.policy.batching.train_batch import TrainBatch
    from ramet.rollout.scoring import ScoredGroup
    from ramet.types import AdvantageEstimator, Group

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SIZES = "4096x4096,4096x16384,64x131072,128x131072,256x131072"
GROUP, PROMPT, RESULT = 16, 512, 256  # rollouts of a group; tokens of its prompt, of a tool's result
SIDES = ("step", "group", "workers")
PARTS = ("groups", "rows", "advantages", "pack", "record")  # in the driver
GB = 2.0**30


def groups_of(n_rollouts: int, n_tokens: int) -> Iterator[Group]:
    """Groups whose rollouts have `n_tokens` after the prompt, those of a tool included."""
    import numpy as np

    from ramet.types import Group, Origin, Rollout, Segment, SegmentKind, StopReason, Task, user_prompt

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

    half = (n_tokens - RESULT) // 2
    for number in range(n_rollouts // GROUP):
        task, prompt = Task(id=str(number), prompt=user_prompt("?")), segment(SegmentKind.PROMPT, PROMPT)
        rollouts = []
        for i in range(GROUP):
            own = (
                segment(SegmentKind.TURN, half),
                segment(SegmentKind.RESULT, RESULT),
                segment(SegmentKind.TURN, half, 1),
            )
            rollouts.append(Rollout(id=str(i), task=task, segments=(prompt, *own), stop=StopReason.ANSWER))
        yield Group(task=task, rollouts=tuple(rollouts))


def grpo(scope: Literal["batch", "group"]) -> AdvantageEstimator:
    from ramet.algorithms.advantages.config import GrpoConfig
    from ramet.algorithms.advantages.grpo import Grpo
    from ramet.types import AdvantageEstimator

    estimator = cast(AdvantageEstimator, Grpo(GrpoConfig()))
    estimator.scope = scope
    return estimator


def work(driver: Connection, n_rollouts: int, n_tokens: int) -> None:
    """Do what all rollout workers do for a step, and then what a rank does to read the rows."""
    from ramet.policy.advantages import learn_group
    from ramet.policy.batching.train_batch import TrainBatch

    groups = []
    for group in groups_of(n_rollouts, n_tokens):
        groups.append(group)
        driver.send_bytes(pickle.dumps(group, protocol=5))
    if (asked := driver.recv_bytes()) == b"":
        return
    began, estimator = time.process_time(), grpo("group")
    parts = pickle.loads(asked)
    pairs = [learn_group(estimator, part.group(group)) for part, group in zip(parts, groups, strict=True)]
    learned = time.process_time()
    packed, buffers = pack([batch for batch, _ in pairs])
    sent = time.process_time()
    batch = TrainBatch.of_parts(pickle.loads(packed, buffers=buffers), kl_coef=0.0).by_thread()
    seconds = {"rows and advantages": learned - began, "pack": sent - learned, "read": time.process_time() - sent}
    driver.send_bytes(pickle.dumps([report for _, report in pairs]))
    driver.send_bytes(pickle.dumps((seconds, sums(batch))))


class Spent:
    """CPU seconds of this process by part, and the most memory that it had had at the end of each."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self.memory: dict[str, float] = {"start": peak()}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds[name], self.memory[name] = time.process_time() - began, peak()


Learned = tuple["TrainBatch | None", dict[str, float], str]  # the batch, seconds elsewhere, the advantages' digest


def measure(side: str, n_rollouts: int, n_tokens: int, write: bool) -> dict[str, Any]:
    """One step's work in the driver."""
    from ramet.cluster.ray.group_parts import to_record
    from ramet.cluster.ray.played_groups import GroupPlace
    from ramet.train.recording import record_path, record_step, step_records
    from ramet.train.step_rollouts import PlayedStep

    spent = Spent()
    workers, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=work, args=(theirs, n_rollouts, n_tokens))
    process.start()
    theirs.close()
    with spent.part("groups"):
        groups = [scored(pickle.loads(workers.recv_bytes())) for _ in range(n_rollouts // GROUP)]
    made = side == "workers"
    batch, elsewhere, advantages = (
        in_workers(workers, groups, spent) if made else in_driver(workers, groups, side, spent)
    )
    process.join()
    played = PlayedStep(groups=groups, replaced=[])
    with spent.part("record"):
        records = step_records(1, played, batch)
        pickle.dumps([to_record(GroupPlace(0, i), record, made=made) for i, record in enumerate(records)])
    run = {
        "side": side,
        "rollouts": n_rollouts,
        "tokens": n_tokens,
        "cpu_s": spent.seconds,
        "peak_gb": dict(spent.memory),
        "elsewhere_cpu_s": elsewhere,
        "advantages": advantages,
    }
    if write:
        with tempfile.TemporaryDirectory() as folder, spent.part("write"):
            record_step(Path(folder), 1, played, batch)
            run["record_gb"] = record_path(Path(folder), 1).stat().st_size / GB
    return run


def scored(group: Group) -> ScoredGroup:
    from ramet.rollout.scoring import ScoredGroup, ScoredRollout

    rollouts = [ScoredRollout(rollout=rollout, reward=float(i % 2)) for i, rollout in enumerate(group.rollouts)]
    return ScoredGroup(task=group.task, rollouts=tuple(rollouts))


def in_workers(workers: Connection, groups: list[ScoredGroup], spent: Spent) -> Learned:
    """Send the workers their rewards, and get what they report of rows and advantages."""
    from ramet.cluster.ray.group_parts import to_learn
    from ramet.cluster.ray.played_groups import GroupPlace
    from ramet.policy.advantages import GroupToLearn

    with spent.part("advantages"):
        asked = [GroupToLearn(number=i, group=group, greedy=None) for i, group in enumerate(groups)]
        workers.send_bytes(pickle.dumps([to_learn(GroupPlace(0, i), group) for i, group in enumerate(asked)]))
        assert len(pickle.loads(workers.recv_bytes())) == len(groups)
    elsewhere, advantages = pickle.loads(workers.recv_bytes())
    return None, elsewhere, advantages


def in_driver(workers: Connection, groups: list[ScoredGroup], side: str, spent: Spent) -> Learned:
    """Make rows and advantages here, and read them as a rank does."""
    from ramet.policy.advantages import estimate
    from ramet.policy.batching.rows import rows_of
    from ramet.policy.batching.train_batch import TrainBatch

    workers.send_bytes(b"")
    with spent.part("rows"):
        rows = rows_of(groups)
    with spent.part("advantages"):
        batch, _ = estimate(grpo("batch" if side == "step" else "group"), TrainBatch(rows=rows))
    with spent.part("pack"):
        packed, buffers = pack(batch)
    began = time.process_time()
    pickle.loads(packed, buffers=buffers)
    return batch, {"read": time.process_time() - began}, sums(batch)


def pack(value: object) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pack as Ray does: arrays are not copied into the stream."""
    buffers: list[pickle.PickleBuffer] = []
    return pickle.dumps(value, protocol=5, buffer_callback=buffers.append), buffers


def sums(batch: TrainBatch) -> str:
    return hashlib.sha256(b"".join(values.tobytes() for values in batch.advantages)).hexdigest()


def peak() -> float:
    """The most memory that this process has had, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=SIZES, help="ROLLOUTSxTOKENS, …")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--one", nargs=3, metavar=("SIDE", "ROLLOUTS", "TOKENS"), help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="write the record in the driver, too")
    options = parser.parse_args()
    if options.one:
        side, rollouts, tokens = options.one
        print(json.dumps(measure(side, int(rollouts), int(tokens), options.write)))
        return
    from harness import print_table, write_results

    runs, sides = [], options.sides.split(",")
    for size in options.sizes.split(","):
        for repeat in range(options.repeats):
            for side in sides if repeat % 2 == 0 else sides[::-1]:
                given = [__file__, "--one", side, *size.split("x"), *(["--write"] if options.write else [])]
                done = subprocess.run([sys.executable, *given], check=True, capture_output=True, text=True)
                runs.append(json.loads(done.stdout.splitlines()[-1]))
            assert len({run["advantages"] for run in runs[-len(sides) :]}) == 1, f"the sides differ: {size}"
    print_table(
        ["rollouts x tokens", "side", *(f"{part}, CPU s" for part in PARTS), "all", "peak, GB", "elsewhere, CPU s"],
        [
            [
                f"{run['rollouts']} x {run['tokens']}",
                run["side"],
                *(f"{run['cpu_s'][part]:.2f}" for part in PARTS),
                f"{sum(run['cpu_s'].values()):.2f}",
                f"{max(run['peak_gb'].values()):.2f}",
                ", ".join(f"{name} {seconds:.2f}" for name, seconds in run["elsewhere_cpu_s"].items()),
            ]
            for run in runs
        ],
    )
    write_results("driver", {"sizes": options.sizes, "group": GROUP, "repeats": options.repeats}, runs, {})


if __name__ == "__main__":
    main()
