"""Rollouts over several workers: which one runs what, and what happens when one dies, is silent, lies or raises.

Workers are real Ray actors around a stand-in for engine and scheduler, since a real one takes seconds to start.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import signal
import sys
import time
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

import ray
from ray import cloudpickle

from ramet.algorithms.advantages.config import GrpoConfig
from ramet.algorithms.advantages.grpo import Grpo
from ramet.cluster.counts import Counts
from ramet.cluster.ray import group_parts, health_monitor, rollout_workers, rollouts
from ramet.cluster.ray.actor_base import SAVE, Actor, in_group, two_results
from ramet.cluster.ray.actors import PolicyActor
from ramet.cluster.ray.backend import RayBackend
from ramet.cluster.ray.played_groups import (
    GroupPlace,
    LearnedPart,
    PartGroup,
    PartLost,
    PartToLearn,
    PlayedGroups,
    fetched,
    piece,
)
from ramet.cluster.ray.rollout_workers import RolloutWorkers
from ramet.cluster.ray.rollouts import RayRollouts
from ramet.cluster.ray.weight_transfers import HostTransfer
from ramet.cluster.ray.worker import RayWorker, WorkerLate, WorkerLost
from ramet.components.toolbox import ToolNames
from ramet.config.schema import ClusterConfig, ComponentConfig, Config, ModelConfig, RolloutConfig
from ramet.engines.protocol import EngineInfo
from ramet.errors import ConfigErrors, InfraError, PluginError
from ramet.policy.advantages import GroupToLearn, learn_group, recorded_advantages
from ramet.policy.batching.train_batch import TrainBatch
from ramet.rollout.metrics import CountedGroup, counted
from ramet.rollout.plan import GrantedGroup, RolloutPlan, RolloutRequest
from ramet.rollout.progress import RolloutProgress
from ramet.rollout.record import INDEX, GroupRecord, read_records, record_line
from ramet.rollout.record_files import recorded_files
from ramet.rollout.scoring import ScoredGroup, ScoredRollout, Scorer, WeightedReward, score_of
from ramet.types import (
    AdvantageEstimator,
    AdvantageInputs,
    AdvantageOutput,
    Group,
    Origin,
    Rollout,
    RolloutScore,
    Segment,
    SegmentKind,
    StopReason,
    Task,
    per_rollout,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import tests
PLAN = RolloutPlan(group_size=4)


class Weighed(Grpo):
    """An estimator that reads the weight of the reward `r`."""

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        output = super().__call__(batch)
        return replace(output, advantages=output.advantages * batch.reward_weights["r"])


ESTIMATOR = cast(AdvantageEstimator, Weighed(GrpoConfig()))


class ByNumber:
    """A reward; kills its process where the file `strike` is, which it takes away."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def __call__(self, rollout: Rollout) -> float:
        if self.folder is not None and (strike := self.folder / "strike").exists():
            strike.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return float(int(rollout.id) % 3)


class Stub(Actor):
    """Does what the task's id says; leaves a file per group that it started, named by task and process."""

    async def start(self) -> EngineInfo:
        setup = self._read_setup()
        self.folder = Path(setup.config.run.root)
        self.version = 0
        self.played = PlayedGroups()
        self._progress = lambda: RolloutProgress(total=99, done=1, forks=1, in_tools=2, tokens=500)
        logging.getLogger("ramet.stub").info("ready")
        return EngineInfo(name="stub", capabilities=frozenset(), vocab_size=7, max_tokens=7)

    async def run_groups(self, request: RolloutRequest) -> list[Group]:
        tasks, names, stored = request.tasks, request.task_names(), request.stored
        if len(tasks) > 1:
            (self.folder / f"share.{'+'.join(names)}").touch()
        granted = request.granted or [GrantedGroup(n=size) for size in request.sizes(4)]
        each = zip(tasks, names, granted, strict=True)
        groups = [await self._group(task, name, stored.get(task.id), group) for task, name, group in each]
        if request.ticket is not None:
            self.played.keep(request.ticket, groups)
        return groups

    @two_results
    async def run_counted_groups(self, request: RolloutRequest) -> tuple[list[CountedGroup], Any]:
        groups = await self.run_groups(request)
        return [counted(group, 2) for group in groups], groups

    async def score_groups(self, ticket: int, n: int) -> list[dict[str, RolloutScore]]:
        scorer = Scorer([WeightedReward(name="r", plugin="stub", reward=per_rollout(ByNumber(self.folder)))])
        return await self.played.score(ticket, n, scorer)

    @in_group(SAVE)
    def learn_groups(self, groups: Sequence[PartToLearn]) -> LearnedPart:
        return self.played.learn(ESTIMATOR, groups)

    @in_group(SAVE)
    def write_part(self, path: Path, parts: Sequence[PartGroup]) -> Path | None:
        return self.played.write(path, parts)

    async def _group(self, task: Task, name: str, stored: GroupRecord | None, granted: GrantedGroup) -> Group:
        began = self.folder / f"{name}.{os.getpid()}"
        first = not any(self.folder.glob(f"{name}.*"))
        began.touch()
        try:
            await self._do(task.id.partition("-")[0], first)
        except asyncio.CancelledError:
            began.rename(f"{began}.cancelled")
            raise
        stats = {"version": float(self.version), "pid": float(os.getpid()), "stored": stored.step if stored else -1.0}
        prompt = Segment(
            origin=Origin.INSERTED, kind=SegmentKind.PROMPT, turn=0, text=task.id, token_ids=array("i", [1, 2])
        )
        turn = Segment(
            origin=Origin.SAMPLED, kind=SegmentKind.TURN, turn=0, text=task.id, token_ids=array("i", [3, 4, 5]),
            logprobs=array("f", [-1.0, -2.0, -3.0]), policy_version=self.version,
        )  # fmt: skip
        rollout = Rollout(id="0", task=task, segments=(prompt, turn), stop=StopReason.END, stats=stats)
        roots = range(granted.first_root, granted.first_root + granted.n)
        return Group(task=task, rollouts=tuple(replace(rollout, id=str(i)) for i in roots))

    async def _do(self, what: str, first: bool) -> None:
        if what == "long":
            await asyncio.sleep(60)
        elif what == "short":
            await asyncio.sleep(0.05)
        elif what == "waits":  # until rollouts of the group before it have met their deadline
            await asyncio.sleep(0.8)
        elif what == "raises":
            raise PluginError("plugin x broke the contract")
        elif what == "fails":
            raise ValueError("no Ramet error")
        elif what == "dies" or (what == "dies_once" and first):
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "stops_once" and first:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif what == "blocks":
            time.sleep(4)  # the event loop, and nothing else

    async def sleep(self) -> bool:
        return True

    async def wake_weights(self) -> None: ...

    async def wake(self) -> None: ...

    async def update_weights(self, weights: list[Any], version: int) -> int:
        [offset] = await asyncio.gather(*weights)
        self.version = version
        return version + offset

    async def counts(self) -> Counts:
        engine = {"engine/prompt_tokens": 10.0, "engine/cached_tokens": float(self.version)}
        return Counts(tools={}, engine=engine, seconds=1.0)

    async def close(self) -> None:
        logging.getLogger("ramet.stub").warning("goodbye")


@pytest.fixture(scope="module", autouse=True)
def stub(two_nodes: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout_workers, "RolloutActor", Stub)
        yield


def config(folder: Path, *, workers: int, step_s: float = 600.0, rollout_s: float = 600.0) -> Config:
    """Each worker runs two groups at once."""
    config = Config(
        model=ModelConfig(path=str(folder), device="cpu"),
        engine=ComponentConfig(name="stub"),
        cluster=ClusterConfig(name="ray", rollout_workers=workers, timeout_s=300),
        rollout=RolloutConfig(group_size=4, max_concurrent=8, step_deadline_s=step_s, deadline_s=rollout_s),
    )
    config.run.root = str(folder)
    return config


class Puts:
    """Ranks whose weights are a number: by how much engines that were given them get the version wrong."""

    def __init__(self, weights: int) -> None:
        self._weights = weights

    async def call(self, work: object) -> list[Any]:
        assert work is PolicyActor.put_weights
        return [ray.put(self._weights)]


async def send(rollouts: RayRollouts, weights: int, *, version: int) -> None:
    ranks: Any = Puts(weights)
    rollouts.workers.transfer = HostTransfer(ranks, timeout_s=60.0)
    await rollouts.workers.update_weights(version)


@dataclass
class Shared:
    """Two workers for tests that leave them as they were."""

    runner: asyncio.Runner
    rollouts: RayRollouts
    folder: Path

    def do(self, work: Callable[[RayRollouts], Coroutine[Any, Any, Any]]) -> Any:
        return self.runner.run(work(self.rollouts))


@pytest.fixture(scope="module")
def shared(stub: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("shared")
    with asyncio.Runner() as runner:
        rollouts = runner.run(RayRollouts.start(config(folder, workers=2), folder=folder, tools=ToolNames()))
        yield Shared(runner, rollouts, folder)
        runner.run(rollouts.close())


@pytest.fixture
def with_rollouts(tmp_path: Path) -> Callable[..., Any]:
    """Do something with rollouts of workers of its own."""

    def with_rollouts(work: Callable[[RayRollouts], Awaitable[Any]], *, workers: int = 2, **seconds: float) -> Any:
        async def run() -> Any:
            started = await RayRollouts.start(
                config(tmp_path, workers=workers, **seconds), folder=tmp_path, tools=ToolNames()
            )
            try:
                return await work(started)
            finally:
                await started.close()

        return asyncio.run(run())

    return with_rollouts


def tasks(*ids: str) -> list[Task]:
    return [Task(id=one, prompt=()) for one in ids]


def stats(groups: list[Group], name: str) -> list[float]:
    return [group.rollouts[0].stats[name] for group in groups]


def test_groups_come_back_in_the_tasks_order_from_both_workers(shared):
    async def work(rollouts: RayRollouts) -> list[Group]:
        heard: list[str] = []
        asked = tasks("long-0", *(f"short-{i}" for i in range(8)))
        running = asyncio.create_task(
            rollouts.run(RolloutRequest(tasks=asked, step=1, plan=PLAN), on_group=lambda g: heard.append(g.task.id))
        )
        async with asyncio.timeout(20):
            while len(heard) < 8:
                await asyncio.sleep(0.01)
        assert heard[0] != "long-0" and set(heard) == {task.id for task in asked[1:]}
        running.cancel()
        await asyncio.wait([running])
        groups = await rollouts.run(RolloutRequest(tasks=tasks("b", "a", "b"), step=1, plan=PLAN))
        async with rollouts.uncounted():  # each worker is asked twice, once for what is kept
            await rollouts.run(RolloutRequest(tasks=tasks("c"), step=1, plan=replace(PLAN, counted=False)))
        metrics = await rollouts.metrics()
        assert (metrics["rollout/rollouts"], metrics["engine/prompt_tokens"], metrics["rollout/restarts"]) == (
            44,
            40,
            0,
        )
        return groups

    assert [group.task.id for group in shared.do(work)] == ["b", "a", "b"]
    assert {path.name.rpartition(".")[0] for path in shared.folder.glob("b*")} == {"b", "b#1"}, "as `task_names` says"
    assert len({path.name.split(".")[1] for path in shared.folder.glob("short-*")}) == 2, "both workers ran some"
    assert list(shared.folder.glob("long-0.*.cancelled")), "a run that is given up ends in the workers too"


def test_for_a_rollout_method_each_worker_is_given_its_share_at_once(shared, monkeypatch):
    monkeypatch.setattr(shared.rollouts, "_method", object())

    async def work(rollouts: RayRollouts) -> list[Group]:
        groups = await rollouts.run(RolloutRequest(tasks=tasks("r0", "r1", "r2"), step=1, plan=PLAN))
        [alone] = await rollouts.run(RolloutRequest(tasks=tasks("r3"), step=1, plan=PLAN))
        return [*groups, alone]

    groups = shared.do(work)
    assert [group.task.id for group in groups] == ["r0", "r1", "r2", "r3"]
    assert {path.name for path in shared.folder.glob("share.*")} == {"share.r1+r2"}
    first, *second = stats(groups[:3], "pid")
    assert second == [second[0]] * 2 and second[0] != first


def scored(groups: Sequence[Group]) -> list[GroupRecord]:
    """The records of groups with one rollout each, whose rewards are their places."""
    return [
        GroupRecord(
            step=3,
            group=ScoredGroup(
                task=group.task, rollouts=(ScoredRollout(rollout=group.rollouts[0], reward=float(i), parts={"r": 1.0}),)
            ),
            advantages={"0": array("f", [0.5])},
            number=10 + i,
        )
        for i, group in enumerate(groups)
    ]


def test_each_worker_writes_the_groups_that_it_ran_and_the_driver_those_of_one_that_cannot(
    shared, tmp_path, monkeypatch
):
    async def work(rollouts: RayRollouts) -> None:
        asked = tasks(*(f"short-r{i}" for i in range(8)))
        granted = [GrantedGroup(n=1)] * len(asked)
        request = RolloutRequest(tasks=asked, step=3, plan=replace(PLAN, recorded=True), granted=granted)
        full_disk = OSError(errno.ENOSPC, "No space left on device")
        for step, error in ((3, None), (4, WorkerLost("rollout worker 0 is lost")), (5, full_disk)):
            groups = await rollouts.run(request)
            if error is not None:

                async def call(timeout_s: float, function: Any, *arguments: Any, error: Exception = error) -> Any:
                    raise error

                monkeypatch.setattr(rollouts.workers.dispatcher.workers[0], "call", call)
            await rollouts.recorder(tmp_path / f"rollouts/step_{step:06d}", scored(groups))
            monkeypatch.undo()
            [*_, file] = recorded_files(tmp_path)
            assert (file.step, file.path.is_dir()) == (step, True)
            assert sorted(path.name for path in file.path.iterdir()) == [
                INDEX,
                "part_000.jsonl.gz",
                "part_001.jsonl.gz",
            ]
            assert list(map(record_line, read_records(file.path))) == list(map(record_line, scored(groups)))

    shared.do(work)
    assert [path.name for path in (tmp_path / "rollouts").iterdir() if path.name.startswith(".")] == []


def test_each_worker_makes_the_rows_of_its_groups_and_the_driver_those_of_one_that_is_lost(
    shared, tmp_path, monkeypatch
):
    """As the driver would by itself; the record has the advantages, whichever process made them and writes them. The
    groups are a step budget's: several of one task, with roots of other numbers. Rewards have weights.
    """
    lost, full_disk = WorkerLost("rollout worker 0 is lost"), OSError(errno.ENOSPC, "No space left on device")

    async def work(rollouts: RayRollouts) -> None:
        names = [f"short-a{i % 2}" for i in range(6)]
        granted = [GrantedGroup(n=3 + i % 2, first_root=4 * (i // 2)) for i in range(6)]
        request = RolloutRequest(
            tasks=tasks(*names), step=1, plan=replace(PLAN, recorded=True), granted=granted, names=names
        )
        for step, failures in enumerate(({}, {"learn_groups": lost, "write_part": lost}, {"write_part": full_disk}), 1):
            records = [rewarded(group, i) for i, group in enumerate(await rollouts.run(request))]
            groups = [to_learn(one, i) for i, one in enumerate(records) if i != 3]
            worker = rollouts.workers.dispatcher.workers[0]
            monkeypatch.setattr(worker, "call", failing(worker.call, failures))
            batches, learned = await rollouts.parts.learn(ESTIMATOR, groups)
            await rollouts.recorder(tmp_path / f"step_{step:06d}", records)
            monkeypatch.undo()
            assert len(batches) == 2, "one object for each worker"
            found = sorted((b for part in fetched(batches) for b in part), key=lambda batch: batch.rows[0].group)
            expected = [learn_group(ESTIMATOR, group) for group in groups]
            assert learned == [report for _, report in expected]
            assert [advantages(batch) for batch in found] == [advantages(batch) for batch, _ in expected]
            of_groups = iter([recorded_advantages(batch) for batch, _ in expected])
            made = [replace(one, advantages={} if i == 3 else next(of_groups)) for i, one in enumerate(records)]
            written = read_records(tmp_path / f"step_{step:06d}")
            assert list(map(record_line, written)) == list(map(record_line, made))

    shared.do(work)
    assert not shared.rollouts.parts._played and not shared.rollouts.parts._learned, "a step leaves nothing here"


def in_driver() -> Scorer:
    return Scorer([WeightedReward(name="r", plugin="stub", reward=per_rollout(ByNumber()))])


async def learned_and_recorded(rollouts: RayRollouts, groups: Sequence[Group], path: Path) -> None:
    """What a step does with the groups that the rollouts gave; the driver's scorer leaves the workers' scores alone."""
    scored = [await in_driver().score(group) for group in groups]
    records = [GroupRecord(step=1, group=group) for group in scored]
    batches, _ = await rollouts.parts.learn(ESTIMATOR, [to_learn(one, i) for i, one in enumerate(records)])
    assert sum(len(part) for part in fetched(batches)) == len(groups)
    await rollouts.recorder(path, records)


@pytest.mark.parametrize("lost", ["none", "while_scoring", "before_rows"])
def test_the_driver_of_groups_that_workers_score_has_no_tokens_and_the_same_record_and_metrics(
    with_rollouts, tmp_path, lost
):
    """Also where a worker dies: the complete groups are in the object store of its node."""

    async def work(rollouts: RayRollouts) -> None:
        asked = RolloutRequest(tasks=tasks("short-s0", "short-s1"), step=1, plan=replace(PLAN, recorded=True))
        complete = await rollouts.run(asked)
        expected = await rollouts.metrics()
        await learned_and_recorded(rollouts, complete, tmp_path / "step_000001")
        if lost == "while_scoring":
            (tmp_path / "strike").touch()
        heard: list[Group] = []
        kept = await rollouts.run(replace(asked, plan=replace(asked.plan, scored=True)), on_group=heard.append)
        assert {id(group) for group in heard} == {id(group) for group in kept}
        if lost != "while_scoring":
            assert not any(rollout.segments for group in kept for rollout in group.rollouts)
            assert [list(group.scores) for group in kept] == [[r.id for r in group.rollouts] for group in complete]
        if lost == "before_rows":
            for worker in list(rollouts.workers.dispatcher.workers):
                worker.kill()
        found = await rollouts.metrics()
        same = [name for name in expected if name.startswith("rollout/") and not name.endswith(("seconds", "restarts"))]
        assert [(name, found[name]) for name in same] == [(name, expected[name]) for name in same]
        await learned_and_recorded(rollouts, kept, tmp_path / "step_000002")
        first, second = (b"".join(map(record_line, read_records(tmp_path / f"step_00000{n}"))) for n in (1, 2))
        pid = re.compile(rb'"pid":[\d.]+')
        assert pid.sub(b"", first) == pid.sub(b"", second)
        assert not rollouts.parts._played and not rollouts.parts._learned

    with_rollouts(work)


@pytest.mark.parametrize(
    ("methods", "rows", "fault"),
    [(["learn_groups", "write_part"], 0, group_parts.LOST), (["write_part"], 4, group_parts.TRAINED)],
    ids=["before_the_update", "after_it"],
)
def test_groups_that_are_lost_with_their_node_are_masked_in_the_record(
    shared, tmp_path, monkeypatch, methods, rows, fault
):
    async def work(rollouts: RayRollouts) -> None:
        plan = replace(PLAN, recorded=True, scored=True)
        kept = await rollouts.run(RolloutRequest(tasks=tasks("short-n0", "short-n1"), step=1, plan=plan))
        records = [GroupRecord(step=1, group=await in_driver().score(group)) for group in kept]
        worker = rollouts.parts._played[id(kept[0].rollouts[0].stats)].worker
        lost = WorkerLost("rollout worker 0 is lost")
        monkeypatch.setattr(worker, "call", failing(worker.call, dict.fromkeys(methods, lost)))
        monkeypatch.setattr(group_parts, "fetched", nothing)
        _, learned = await rollouts.parts.learn(ESTIMATOR, [to_learn(one, i) for i, one in enumerate(records)])
        await rollouts.recorder(tmp_path / "step_000001", records)
        monkeypatch.undo()
        first, second = read_records(tmp_path / "step_000001")
        n_lost = 2 if first.group.valid == second.group.valid == () else 1  # both may have run on one worker
        assert [group.n_rows for group in learned] == [rows, rows if n_lost == 2 else 4]
        assert {one.rollout.fault for one in first.group.rollouts} == {fault} and not first.advantages
        assert [one.parts["r"] for one in first.group.rollouts] == [0.0, 1.0, 2.0, 0.0], "its scores are known"

    def nothing(parts: Any) -> Any:
        raise PartLost("groups are lost with their node")

    shared.do(work)


def test_groups_that_are_lost_before_a_step_has_all_are_run_again_and_counted_once(shared, monkeypatch):
    lost = iter([True, False, False, False])  # of two groups, twice: only the first, once

    async def work(rollouts: RayRollouts) -> None:
        await rollouts.metrics()
        monkeypatch.setattr(RayRollouts, "_are_lost", lambda *_: asyncio.sleep(0, next(lost)))
        heard: list[Group] = []
        plan = replace(PLAN, recorded=True, scored=True)
        request = RolloutRequest(tasks=tasks("short-o0", "short-o1"), step=1, plan=plan)
        groups = await rollouts.run(request, on_group=heard.append)
        assert [group.task.id for group in groups] == ["short-o0", "short-o1"]
        assert sorted(group.task.id for group in heard) == ["short-o0", "short-o0", "short-o1"]
        assert (await rollouts.metrics())["rollout/rollouts"] == 8

    shared.do(work)


def rewarded(group: Group, number: int) -> GroupRecord:
    """A record whose advantages are still to be made."""
    rollouts = [ScoredRollout(rollout=one, reward=float(i == number % 3)) for i, one in enumerate(group.rollouts)]
    return GroupRecord(step=1, group=ScoredGroup(task=group.task, rollouts=tuple(rollouts)), advantages={})


def to_learn(record: GroupRecord, number: int) -> GroupToLearn:
    return GroupToLearn(number=number, group=record.group, greedy=None, reward_weights={"r": 0.5 + number})


def failing(call: Callable[..., Any], errors: Mapping[str, Exception]) -> Callable[..., Any]:
    async def failing(timeout_s: float, function: Any, *arguments: Any) -> Any:
        if (error := errors.get(function.__name__)) is not None:
            raise error
        return await call(timeout_s, function, *arguments)

    return failing


def advantages(batch: TrainBatch) -> list[tuple[int, str, list[float]]]:
    return [(row.group, row.rollout_id, one.tolist()) for row, one in zip(batch.rows, batch.advantages, strict=True)]


def test_rows_that_are_lost_with_a_worker_are_made_by_the_driver(shared, caplog):
    """Before any rank has begun."""

    class Ranks:
        def __init__(self) -> None:
            self.batches: list[TrainBatch] = []
            self.calls = 0

        async def call(self, function: object, parts: Any, kl_coef: float) -> None:
            assert function is PolicyActor.fetch and kl_coef == 0.5
            self.calls += 1
            if self.calls == 1:
                raise PartLost("rows are lost with their node")
            self.batches = [batch for part in await asyncio.to_thread(fetched, parts) for batch in part]

    async def work(rollouts: RayRollouts) -> None:
        request = RolloutRequest(tasks=tasks("short-l0", "short-l1"), step=1, plan=replace(PLAN, recorded=True))
        records = [rewarded(group, i) for i, group in enumerate(await rollouts.run(request))]
        groups = [to_learn(one, i) for i, one in enumerate(records)]
        ranks: Any = Ranks()
        backend = RayBackend(rollouts._pool, ranks, rollouts)
        learned = await backend.learn_groups(ESTIMATOR, groups, 0.5)
        expected = [learn_group(ESTIMATOR, group) for group in groups]
        assert learned == [report for _, report in expected]
        assert list(map(advantages, ranks.batches)) == [advantages(batch) for batch, _ in expected]

    shared.do(work)
    assert "the driver makes the rows of the step" in caplog.text


def test_a_part_whose_folder_a_worker_does_not_see_is_fetched_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("ramet.cluster.ray.played_groups.PIECE", 10)
    played, task = PlayedGroups(), Task(id="t", prompt=())
    group = Group(task=task, rollouts=(Rollout(id="0", task=task, segments=(), stop=StopReason.END),))
    played.keep(7, [group])
    [record] = scored([group])
    part = PartGroup(
        place=GroupPlace(7, 0), step=3, scores={"0": score_of(record.group.rollouts[0])}, advantages=record.advantages,
        number=10, greedy=(),
    )  # fmt: skip
    elsewhere = played.write(tmp_path / "not here" / "part_000.jsonl.gz", [part])
    assert elsewhere is not None and not (tmp_path / "not here").exists()
    fetched = b""
    while data := piece(elsewhere, len(fetched)):
        fetched += data
    (tmp_path / "part.jsonl.gz").write_bytes(fetched)
    assert list(map(record_line, read_records(tmp_path / "part.jsonl.gz"))) == [record_line(record)]
    assert not elsewhere.parent.exists()
    played.keep(8, [group])
    (tmp_path / "part_001.jsonl.gz").mkdir()  # cannot be replaced by a file
    with pytest.raises(OSError, match="part_001"):
        played.write(tmp_path / "part_001.jsonl.gz", [replace(part, place=GroupPlace(8, 0))])
    assert not played._groups, "the driver has them, too"


def test_a_worker_gets_what_is_stored_of_its_task(shared):
    async def work(rollouts: RayRollouts) -> list[Group]:
        a, b = tasks("a", "b")
        record = GroupRecord(step=5, group=ScoredGroup(task=b, rollouts=()))
        return await rollouts.run(RolloutRequest(tasks=[a, b], step=6, plan=PLAN, stored={"b": record}))

    assert stats(shared.do(work), "stored") == [-1.0, 5.0]


def test_each_group_has_the_size_that_a_step_budget_granted(shared):
    async def work(rollouts: RayRollouts) -> list[int]:
        granted = [GrantedGroup(n=n) for n in (3, 8, 1)]
        request = RolloutRequest(tasks=tasks("b", "a", "b"), step=1, plan=PLAN, granted=granted, names=["b", "a", "b"])
        return [len(group.rollouts) for group in await rollouts.run(request)]

    assert shared.do(work) == [3, 8, 1]


def test_progress_comes_with_the_answers_to_pings(shared):
    """Each of the two workers says that one rollout of its running groups is done, and two are in tools."""

    async def work(rollouts: RayRollouts) -> RolloutProgress:
        running = asyncio.create_task(rollouts.run(RolloutRequest(tasks=tasks("long-9", "short-9"), step=1, plan=PLAN)))
        async with asyncio.timeout(20):
            while (found := rollouts.progress()).done < 6 or found.in_tools < 4:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])
        assert rollouts.progress().total == 0
        return found

    assert shared.do(work) == RolloutProgress(total=8, done=6, forks=2, in_tools=4, tokens=1000)


def test_no_worker_is_given_more_than_it_admits(shared):
    async def work(rollouts: RayRollouts) -> list[int]:
        running = asyncio.create_task(
            rollouts.run(RolloutRequest(tasks=tasks(*(f"long-a{i}" for i in range(9))), step=1, plan=PLAN))
        )
        async with asyncio.timeout(20):
            while len(list(shared.folder.glob("long-a*"))) < 4:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        began = [path.name.split(".")[1] for path in shared.folder.glob("long-a*")]
        running.cancel()
        await asyncio.wait([running])
        return sorted(began.count(pid) for pid in set(began))

    assert shared.do(work) == [2, 2], "8 rollouts each are two groups; five groups wait for a free worker"


def test_a_worker_that_is_lost_while_it_falls_asleep_is_replaced(shared, monkeypatch):
    replaced: list[tuple[RayWorker, str]] = []
    monkeypatch.setattr(RolloutWorkers, "replace", lambda _, worker, error: replaced.append((worker, str(error))))

    async def work(rollouts: RayRollouts) -> None:
        first, second = rollouts.workers.dispatcher.workers
        asked: list[str] = []

        async def lost(timeout_s: float, function: Any) -> bool:
            raise WorkerLost("rollout worker 0 is lost")

        async def able(timeout_s: float, function: Any) -> bool:
            asked.append(function.__name__)
            return True

        monkeypatch.setattr(first, "call", lost)
        monkeypatch.setattr(second, "call", able)
        await rollouts.workers.sleep()
        rollouts.workers._asleep = False  # as the next test expects it
        assert replaced == [(first, "rollout worker 0 is lost")] and asked == ["sleep"]

    shared.do(work)


def test_an_error_in_a_worker_is_the_drivers_as_it_was_and_others_say_where_they_come_from(shared):
    async def work(rollouts: RayRollouts) -> None:
        with pytest.raises(PluginError, match=r"^plugin x broke the contract$") as caught:
            await rollouts.run(RolloutRequest(tasks=tasks("raises-0", "long-b"), step=1, plan=PLAN))
        assert type(caught.value) is PluginError
        with pytest.raises(ValueError, match=r"^no Ramet error") as other:
            await rollouts.run(RolloutRequest(tasks=tasks("fails-0"), step=1, plan=PLAN))
        [note] = other.value.__notes__
        assert re.match(r"in rollout worker \d \(node [\d.]+, pid \d+\):", note)
        assert "in _do" in note and "\x1b" not in note

    shared.do(work)


def test_an_engine_that_serves_another_version_than_it_was_given_is_refused(shared):
    """F6."""

    async def work(rollouts: RayRollouts) -> None:
        await send(rollouts, -1, version=5)

    with pytest.raises(InfraError, match=r"was given the weights of version 5 and serves version 4: refused"):
        shared.do(work)


def test_a_worker_that_dies_is_replaced_with_the_current_weights_and_only_its_groups_are_run_again(
    with_rollouts, tmp_path, caplog
):
    """F4, and F19 in what is logged."""

    async def work(rollouts: RayRollouts) -> tuple[list[Group], dict[str, float]]:
        await send(rollouts, 0, version=5)
        groups = await rollouts.run(
            RolloutRequest(tasks=tasks("short-0", "dies_once-1", "short-2", "short-3"), step=1, plan=PLAN)
        )
        async with asyncio.timeout(60):
            while "is replaced after" not in caplog.text:
                await asyncio.sleep(0.05)
        groups += await rollouts.run(RolloutRequest(tasks=tasks("short-4", "short-5"), step=1, plan=PLAN))
        return groups, await rollouts.metrics()

    with caplog.at_level(logging.INFO, logger="ramet"):
        groups, metrics = with_rollouts(work)
    assert [group.task.id for group in groups[:4]] == ["short-0", "dies_once-1", "short-2", "short-3"]
    assert stats(groups, "version") == [5] * 6
    assert len({*stats(groups[4:], "pid")}) == 2, "the new one runs groups beside the other"
    assert len(list(tmp_path.glob("dies_once-1.*"))) == 2
    assert sum(len(list(tmp_path.glob(f"short-{i}.*"))) for i in (0, 2, 3)) <= 4, "at most one shared its fate"
    assert metrics["rollout/restarts"] == 1 and metrics["rollout/rollouts"] == 24
    [message] = [record.message for record in caplog.records if "is lost" in record.message]
    assert re.match(
        r"rollout worker \d \(node [\d.]+, pid \d+\) is lost: its process ended at once: killed \(SIGKILL, out of "
        r"memory\) or crashed \(.*\); replacing it \(1 of at most 3 within 30 minutes\), and its groups are run again$",
        message,
    )
    assert re.search(r"rollout worker \d: ready", caplog.text)
    for worker in (0, 1):
        assert f"rollout worker {worker}: goodbye" in caplog.text


def test_a_silent_worker_is_replaced_too_and_a_busy_one_is_not(with_rollouts, tmp_path, monkeypatch, caplog):
    """F5: answers to pings come from another thread than the work."""
    monkeypatch.setattr(health_monitor, "SILENCE_S", 2.0)

    async def work(rollouts: RayRollouts) -> list[Group]:
        return await rollouts.run(RolloutRequest(tasks=tasks("blocks-0", "stops_once-1"), step=1, plan=PLAN))

    assert [group.task.id for group in with_rollouts(work)] == ["blocks-0", "stops_once-1"]
    assert len(list(tmp_path.glob("blocks-0.*"))) == 1
    assert "is lost: it has not answered for 2 s; replacing it (1 of" in caplog.text


@pytest.mark.parametrize(
    ("plan", "seconds", "key"),
    [
        (PLAN, {"step_s": 0.5}, "rollout.step_deadline_s"),
        (replace(PLAN, step_deadline=False), {"rollout_s": 0.5}, "rollout.deadline_s"),
    ],
)
def test_a_group_that_does_not_come_back_in_time_costs_its_worker(
    with_rollouts, monkeypatch, caplog, plan, seconds, key
):
    monkeypatch.setattr(rollouts, "PATIENCE_S", 0.5)

    async def work(rollouts: RayRollouts) -> None:
        running = asyncio.create_task(rollouts.run(RolloutRequest(tasks=tasks("long-0"), step=1, plan=plan)))
        async with asyncio.timeout(30):
            while not rollouts.workers.restarts:
                await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.wait([running])

    with_rollouts(work, workers=1, **seconds)
    assert re.search(rf"did not finish `run_groups` within .* s \({key}\); replacing it", caplog.text)


def test_a_group_may_take_as_long_as_its_rewards_where_they_are_asked_in_its_worker(with_rollouts, monkeypatch):
    """Rollouts have ended by their deadline; scores have time-outs of their own, and a slow one costs no worker."""
    monkeypatch.setattr(rollouts, "PATIENCE_S", 0.1)

    async def work(rollouts: RayRollouts) -> int:
        monkeypatch.setattr(rollouts, "_score_s", 30.0)
        await rollouts.run(RolloutRequest(tasks=tasks("waits-0"), step=1, plan=PLAN))
        return rollouts.workers.restarts

    assert with_rollouts(work, workers=1, step_s=0.1) == 0


def test_an_evaluation_has_no_deadline_of_a_step(with_rollouts, monkeypatch):
    monkeypatch.setattr(rollouts, "PATIENCE_S", 0.0)

    async def work(rollouts: RayRollouts) -> int:
        plan = replace(PLAN, step_deadline=False)
        groups = await rollouts.run(RolloutRequest(tasks=tasks("short-0", "short-1", "short-2"), step=0, plan=plan))
        assert [group.task.id for group in groups] == ["short-0", "short-1", "short-2"]
        return rollouts.workers.restarts

    assert with_rollouts(work, workers=1, step_s=1e-3) == 0


def test_a_group_may_wait_for_its_turn_in_addition_to_the_time_of_its_rollouts(with_rollouts, monkeypatch):
    monkeypatch.setattr(rollouts, "PATIENCE_S", 0.1)

    async def work(rollouts: RayRollouts) -> int:
        await rollouts.run(RolloutRequest(tasks=tasks("waits-0"), step=0, plan=replace(PLAN, step_deadline=False)))
        return rollouts.workers.restarts

    assert with_rollouts(work, workers=1, rollout_s=0.5) == 0


def test_after_so_many_replacements_the_run_stops(with_rollouts, tmp_path, monkeypatch):
    """F4: one here instead of three, for the time that it takes."""
    assert rollout_workers.MAX_RESTARTS == 3
    monkeypatch.setattr(rollout_workers, "MAX_RESTARTS", 1)

    async def work(rollouts: RayRollouts) -> None:
        await rollouts.run(RolloutRequest(tasks=tasks("dies-0"), step=1, plan=PLAN))

    with pytest.raises(InfraError, match=r"at most 1 rollout workers"):
        with_rollouts(work, workers=1)
    assert len(list(tmp_path.glob("dies-0.*"))) == 2


def test_workers_that_are_lost_with_their_node_count_once(with_rollouts, monkeypatch, caplog):
    """Ray's nodes have one address here. A replacement that is lost counts again."""
    monkeypatch.setattr(rollout_workers, "MAX_RESTARTS", 1)

    async def work(rollouts: RayRollouts) -> int:
        await rollouts.run(RolloutRequest(tasks=tasks("dies_once-0", "dies_once-1"), step=1, plan=PLAN))
        async with asyncio.timeout(60):
            while caplog.text.count("is replaced after") < 2:
                await asyncio.sleep(0.05)
        assert rollouts.workers.restarts == 2
        await rollouts.run(RolloutRequest(tasks=tasks("dies_once-2"), step=2, plan=PLAN))
        return 0

    with pytest.raises(InfraError, match=r"at most 1 rollout workers"):
        with_rollouts(work, workers=2)
    assert caplog.text.count("(1 of at most 1 within") == 2


def test_a_replacement_that_no_node_has_room_for_is_waited_for_while_others_work(shared, caplog):
    class Late:
        asked = 0

        async def wait_started(self, timeout_s: float) -> None:
            self.asked += 1
            if self.asked < 3:
                raise WorkerLate("it did not start")

        def __str__(self) -> str:
            return "rollout worker 2"

    async def work(rollouts: RayRollouts) -> None:
        late: Any = Late()
        await rollouts.workers._wait_started(late, True)
        assert late.asked == 3
        with pytest.raises(InfraError, match="it did not start"):
            await rollouts.workers._wait_started(cast(Any, Late()), False)

    shared.do(work)
    waited = [record.message for record in caplog.records if "no node has room" in record.message]
    assert len(waited) == 2 and all(
        line.startswith("rollout worker 2 has not started within cluster") for line in waited
    )


def test_only_replacements_of_the_last_while_count(with_rollouts, monkeypatch):
    monkeypatch.setattr(rollout_workers, "MAX_RESTARTS", 1)
    monkeypatch.setattr(rollout_workers, "RESTART_WINDOW_S", 0.0)

    async def work(rollouts: RayRollouts) -> int:
        for step in (1, 2):
            await rollouts.run(RolloutRequest(tasks=tasks(f"dies_once-{step}"), step=step, plan=PLAN))
        return rollouts.workers.restarts

    assert with_rollouts(work, workers=1) == 2


def test_a_node_with_other_plugins_is_refused_with_both_versions(with_rollouts, monkeypatch):
    from ramet.cluster.ray import driver_environment

    rows = driver_environment._plugins()
    claimed = tuple((name, distribution, "9.9" if name == "core" else version) for name, distribution, version in rows)
    monkeypatch.setattr(driver_environment, "_plugins", lambda: (*claimed, ("weather", "my-weather", "1.2")))

    async def work(rollouts: RayRollouts) -> None: ...

    with pytest.raises(ConfigErrors) as caught:
        with_rollouts(work, workers=1)
    version = next(version for name, _, version in rows if name == "core")
    first, second = caught.value.problems
    assert re.match(rf"cluster: plugin 'core' is ramet {version} on node [\d.]+ and ramet 9.9 where this com", first)
    assert re.match(r"cluster: plugin 'weather' is missing on node [\d.]+ and my-weather 1.2 where this com", second)
