"""What a training step costs its driver, in seconds and memory, as rollouts grow: groups, rewards and metrics, rows,
advantages, what ranks read, the record.

    python bench/driver/run.py [--sizes 4096x4096,4096x16384,64x131072,128x131072,256x131072]
        [--sides step,group,workers,scored] [--repeats 1] [--ranks 64] [--write]

Groups of 16 rollouts with made-up tokens of the stated length, one call of a tool in each. They are made in a process
of their own, which stands for all rollout workers, and sent to the driver's. `step` is an estimator that is called with
the complete step, as all were before; `group` is the same estimator called by group. Both make rows in the driver.
`workers` is `group` where the workers make them. `scored` is `workers` where they score and count the groups, too, so
that no tokens travel to the driver. All must give the same advantages and metrics. Each side of each size has
processes of its own, whose peak memory is their own; they take turns. `--ranks`: so many ranks read the rows of
`scored`, in `CONSUMERS` processes that share them, as the ranks of a node do. `--write` writes the record in the
driver, too, as `cluster=local` does.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import mmap
import multiprocessing
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

if TYPE_CHECKING:
    from ramet.policy.batching.train_batch import TrainBatch
    from ramet.rollout.scoring import ScoredGroup, Scorer
    from ramet.types import AdvantageEstimator, Group

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SIZES = "4096x4096,4096x16384,64x131072,128x131072,256x131072"
GROUP, PROMPT, RESULT = 16, 512, 256  # rollouts of a group; tokens of its prompt, of a tool's result
SIDES = ("step", "group", "workers", "scored")
PARTS = ("groups", "metrics", "rows", "advantages", "pack", "record")  # in the driver
CONSUMERS = 4  # processes, which are several ranks each
FIRST_TOKENS = 20
GB = 2.0**30
T = TypeVar("T")


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


def scorer() -> Scorer:
    from ramet.rollout.scoring import Scorer, WeightedReward
    from ramet.types import per_rollout

    reward = per_rollout(lambda rollout: float(int(rollout.id) % 2))
    return Scorer([WeightedReward(name="parity", plugin="bench", reward=reward)])


def run(work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine does. `asyncio.run` would write its result, all of the groups, as a text at the end."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def work(driver: Connection, side: str, n_rollouts: int, n_tokens: int, ranks: int) -> None:
    """Do what all rollout workers do for a step, and then what a rank does to read the rows."""
    from ramet.cluster.ray.played_groups import scores_of
    from ramet.policy.advantages import learn_group
    from ramet.policy.batching.train_batch import TrainBatch
    from ramet.rollout.metrics import counted

    groups, scored_s = [], 0.0
    for group in groups_of(n_rollouts, n_tokens):
        groups.append(group)
        sent: Group = group
        if side == "scored":
            began = time.process_time()
            scores = scores_of(run(scorer().score(group)))
            sent = replace(counted(group, FIRST_TOKENS), scores=scores)
            scored_s += time.process_time() - began
        driver.send_bytes(pickle.dumps(sent, protocol=5))
    if (asked := driver.recv_bytes()) == b"":
        return
    began, estimator = time.process_time(), grpo("group")
    parts = pickle.loads(asked)
    pairs = [learn_group(estimator, part.group(group)) for part, group in zip(parts, groups, strict=True)]
    learned = time.process_time()
    packed, buffers = pack([batch for batch, _ in pairs])
    packed_at = time.process_time()
    batch = TrainBatch.of_parts(pickle.loads(packed, buffers=buffers), kl_coef=0.0).by_thread()
    seconds = {
        "rows and advantages": learned - began,
        "pack": packed_at - learned,
        "read": time.process_time() - packed_at,
    }
    seconds |= {"rewards and metrics": scored_s} if side == "scored" else {}
    if side == "scored" and ranks:
        seconds |= read_by(ranks, packed, buffers)
    driver.send_bytes(pickle.dumps([report for _, report in pairs]))
    driver.send_bytes(pickle.dumps((seconds, sums(batch))))


def read_by(ranks: int, packed: bytes, buffers: list[pickle.PickleBuffer]) -> dict[str, float]:
    """CPU seconds of a rank that reads the rows, and the most memory of its process without the rows themselves, GiB.

    The rows are in a file of shared memory, as in an object store: ranks of a node see one copy.
    """
    with tempfile.NamedTemporaryFile(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as file:
        sizes = [file.write(part) for part in (packed, *(bytes(buffer) for buffer in buffers))]
        file.flush()
        context = multiprocessing.get_context("spawn")
        with context.Pool(CONSUMERS) as pool:
            done = pool.starmap(consume, [(file.name, sizes)] * ranks, chunksize=-(-ranks // CONSUMERS))
    return {"read by a rank": sum(s for s, _ in done) / ranks, "a rank's own GB": max(gb for _, gb in done)}


def consume(path: str, sizes: list[int]) -> tuple[float, float]:
    """Do what a rank does with the rows of a step before its update."""
    from ramet.policy.batching.train_batch import TrainBatch

    before, began = own_memory(), time.process_time()
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        view, parts, end = memoryview(mapped), [], 0
        for size in sizes:
            parts.append(view[end : end + size])
            end += size
        batch = TrainBatch.of_parts(pickle.loads(parts[0], buffers=parts[1:]), kl_coef=0.0).by_thread()
        spent, memory = time.process_time() - began, own_memory() - before
        del batch, parts, view
    return spent, memory


def own_memory() -> float:
    """The memory of this process that it shares with no other, in GiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024 / GB


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


def measure(side: str, n_rollouts: int, n_tokens: int, ranks: int, write: bool) -> dict[str, Any]:
    """One step's work in the driver."""
    from ramet.cluster.ray.group_parts import to_record
    from ramet.cluster.ray.played_groups import GroupPlace
    from ramet.train.recording import record_path, record_step, step_records
    from ramet.train.step_rollouts import PlayedStep

    spent = Spent()
    workers, theirs = multiprocessing.Pipe()
    given = (theirs, side, n_rollouts, n_tokens, ranks)
    process = multiprocessing.get_context("spawn").Process(target=work, args=given)
    process.start()
    theirs.close()
    with spent.part("groups"):
        played_groups = [pickle.loads(workers.recv_bytes()) for _ in range(n_rollouts // GROUP)]
    with spent.part("metrics"):
        groups, metrics = run(scored(played_groups))
    made = side in ("workers", "scored")
    batch, elsewhere, advantages = (
        in_workers(workers, groups, spent) if made else in_driver(workers, groups, side, spent)
    )
    process.join()
    played = PlayedStep(groups=groups, replaced=[])
    with spent.part("record"):
        records = step_records(1, played, batch)
        pickle.dumps([to_record(GroupPlace(0, i), record, made=made) for i, record in enumerate(records)])
    result = {
        "side": side,
        "rollouts": n_rollouts,
        "tokens": n_tokens,
        "cpu_s": spent.seconds,
        "peak_gb": dict(spent.memory),
        "elsewhere_cpu_s": elsewhere,
        "advantages": advantages,
        "metrics": metrics,
    }
    if write:
        with tempfile.TemporaryDirectory() as folder, spent.part("write"):
            record_step(Path(folder), 1, played, batch)
            result["record_gb"] = record_path(Path(folder), 1).stat().st_size / GB
    return result


async def scored(groups: list[Group]) -> tuple[list[ScoredGroup], dict[str, float]]:
    """Score and count groups, as far as their workers have not."""
    from ramet.rollout.metrics import RolloutMetrics
    from ramet.train.groups import reward_metrics

    metrics, own = RolloutMetrics(FIRST_TOKENS), scorer()
    for group in groups:
        metrics.add(group)
    found = [await own.score(group) for group in groups]
    return found, {**metrics.take(), **reward_metrics(found)}


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


def metrics_of(run: dict[str, Any]) -> str:
    """A run's metrics, to nine digits: sums of entropies are added in another order where workers count."""
    return json.dumps({name: float(f"{value:.9g}") for name, value in run["metrics"].items()}, sort_keys=True)


def peak() -> float:
    """The most memory that this process has had, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=SIZES, help="ROLLOUTSxTOKENS, …")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--one", nargs=3, metavar=("SIDE", "ROLLOUTS", "TOKENS"), help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, default=64, help="0: none")
    parser.add_argument("--write", action="store_true", help="write the record in the driver, too")
    options = parser.parse_args()
    if options.one:
        side, rollouts, tokens = options.one
        print(json.dumps(measure(side, int(rollouts), int(tokens), options.ranks, options.write)))
        return
    from harness import print_table, write_results

    runs, sides = [], options.sides.split(",")
    for size in options.sizes.split(","):
        for repeat in range(options.repeats):
            for side in sides if repeat % 2 == 0 else sides[::-1]:
                given = [__file__, "--one", side, *size.split("x"), "--ranks", str(options.ranks)]
                given += ["--write"] if options.write else []
                done = subprocess.run([sys.executable, *given], check=True, capture_output=True, text=True)
                runs.append(json.loads(done.stdout.splitlines()[-1]))
            same = {(run["advantages"], metrics_of(run)) for run in runs[-len(sides) :]}
            assert len(same) == 1, f"the sides differ: {size}"
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
