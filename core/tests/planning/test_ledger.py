"""A ledger of eight GPUs that do not exist: what every process holds there in each phase of a run, also when an engine
is lost in it. It raises where a device would hold more than it has.

The order of calls is that of a run: `RayBackend`, `RayRanks`, `RayRollouts` and the transfers are real. Their pool and
workers are objects here, without Ray, and their actors only book what the plan says that they take.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from ramet.cluster.ray import backend, policy
from ramet.cluster.ray.actor_base import ActorProcess
from ramet.cluster.ray.backend import RayBackend
from ramet.cluster.ray.worker import WorkerLost
from ramet.cluster.ray.worker_pool import WorkerPool
from ramet.components.toolbox import ToolNames
from ramet.config.schema import Offload
from ramet.engines.protocol import EngineInfo
from ramet.engines.weight_chunks import CHUNK_BYTES
from ramet.errors import InfraError
from ramet.planning.memory import CRITIC_UPDATE, ROLLOUTS, UPDATE, Inputs, MemoryPlan, estimate
from ramet.planning.memory_engine import ENGINE_WEIGHTS
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.rank import PolicyRank
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.types import Group, Need, Rollout, StopReason, Task

GPUS = 8
LOST = 3  # the engine
STEPS = 3
TICKS = 5  # of the event loop, that a call takes


class Run:
    """The ledger, and the calls in which an engine is lost, one after another."""

    def __init__(self, plan: MemoryPlan, lost_in: str) -> None:
        self.plan = plan
        self.lost_in = lost_in.split()
        self.pool: Pool
        self._held: dict[str, dict[object, int]] = defaultdict(dict)

    def hold(self, device: str, who: object, size: int) -> None:
        self._held[device][who] = size
        held, has = sum(self._held[device].values()), self.plan.inputs.machine.device_bytes
        if held > has:
            parts = ", ".join(f"{one} {size / 2**30:.1f}" for one, size in self._held[device].items())
            raise RuntimeError(f"GPU {device} would hold {held / 2**30:.1f} GiB: {parts}")

    def free(self, device: str) -> int:
        return self.plan.inputs.machine.device_bytes - sum(self._held[device].values())

    def drop(self, who: object) -> None:
        for held in self._held.values():
            held.pop(who, None)

    async def in_call(self, method: str, who: Actor) -> None:
        """The time that a call takes; an engine is lost in the middle of its own, or of a rank's."""
        for tick in range(TICKS):
            await asyncio.sleep(0)
            if tick == TICKS // 2 and [method] == self.lost_in[:1] and getattr(who, "number", 0) in (0, LOST):
                engine = next((one for one in self.pool.running if str(one) == f"rollout worker {LOST}"), None)
                if engine is not None and (isinstance(who, Rank) or who is engine.actor):
                    self.lost_in.pop(0)
                    engine.kill()
                    engine.on_lost(engine, WorkerLost(f"{engine} is lost: killed"))


class Actor:
    """Its methods are called by name, as Ray's."""

    def __init__(self, run: Run, device: str) -> None:
        self.run = run
        self.device = device

    def __repr__(self) -> str:
        return f"{type(self).__name__.lower()} {self.device}"

    def hold(self, size: int) -> None:
        self.run.hold(self.device, self, size)


class Rank(Actor):
    """What it has computed with stays reserved until it rests."""

    def __init__(self, run: Run, device: str) -> None:
        super().__init__(run, device)
        phases, engine = run.plan.devices[0].phases, run.plan.engine
        self.number = int(device)
        self.rests = sum(phases[ROLLOUTS].values()) - engine.total - engine.context
        asleep = engine.context + engine.asleep
        self.works = {
            "update": sum(phases[UPDATE].values()) - asleep,
            "update_critic": sum(phases.get(CRITIC_UPDATE, {}).values()) - asleep,
            "load": self.rests + phases[UPDATE]["optimiser"],  # on the device before it is offloaded
        }

    async def call(self, method: str, *arguments: Any) -> Any:
        if method in ("update", "update_critic", "load", "logprobs", "reference_logprobs", "values"):
            self.hold(self.works.get(method, self.works["update"]))
        elif method in ("put_weights", "open_weights"):
            self.hold(self.rests + 2 * CHUNK_BYTES)  # one is gathered, one exported
            self.chunks = iter({"by": "ipc", "told": {"ipc_handles": {self.device: i}}} for i in range(2))
        elif method in ("start", "rest"):
            self.hold(self.rests)
        await self.run.in_call(method, self)
        return next(self.chunks, None) if method == "next_weights" else {} if method.startswith("update") else []


class Engine(Actor):
    def __init__(self, run: Run, device: str, number: int) -> None:
        super().__init__(run, device)
        self.number = number
        self.version = 0
        memory = run.plan.engine
        asleep = memory.context + memory.asleep
        weights = asleep + memory.parts[ENGINE_WEIGHTS]
        self.holds = {"sleep": asleep, "wake_weights": weights, "wake": memory.context + memory.total}

    async def call(self, method: str, *arguments: Any) -> Any:
        if method == "start":
            self._check_room()
        if method in self.holds:
            self.hold(self.holds[method])
        await self.run.in_call(method, self)
        if method == "start":
            self.hold(self.holds["wake"])
            return EngineInfo(name="stub", capabilities=frozenset(), vocab_size=7, max_tokens=7)
        if method in ("finish_update", "update_weights"):
            self.version = arguments[-1]
            return self.version
        if method == "run_groups":
            rollout = partial(Rollout, id="0", segments=(), stop=STOP)
            return [Group(task=task, rollouts=(rollout(task=task),)) for task in arguments[0].tasks]
        return True

    def _check_room(self) -> None:
        """As vLLM does (`request_memory` in v1/worker/utils.py)."""
        share = self.run.plan.inputs.config.engine.params.gpu_memory_utilization
        wanted, free = share * self.run.plan.inputs.machine.device_bytes, self.run.free(self.device)
        if free < wanted:
            raise ValueError(f"Free memory on device ({free / 2**30:.1f} GiB) is less than {wanted / 2**30:.1f} GiB")


STOP = StopReason.END


class Worker:
    """In the place of `RayWorker`."""

    def __init__(self, name: str, actor: Actor, on_lost: Callable[..., None]) -> None:
        self.name, self.actor, self.on_lost = name, actor, on_lost
        self.process = ActorProcess(node="node", pid=1, devices=(actor.device,))
        self.progress = None
        self.started_at = 0.0
        self._dead: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __str__(self) -> str:
        return self.name

    async def wait_started(self, timeout_s: float) -> ActorProcess:
        await asyncio.sleep(0)
        self.started_at = time.monotonic()
        return self.process

    async def call(self, timeout: object, function: Any, *arguments: Any) -> Any:
        work = asyncio.ensure_future(self.actor.call(function.__name__, *arguments))
        await asyncio.wait({work, self._dead}, return_when=asyncio.FIRST_COMPLETED)
        if self._dead.done():
            work.cancel()
            raise WorkerLost(f"{self} is lost: killed")
        return await work

    def kill(self) -> None:
        if not self._dead.done():
            self._dead.set_result(None)
        self.actor.run.drop(self.actor)


class Pool(WorkerPool):
    """The real one's failures and tasks; workers are of this process."""

    def __init__(self, config: Any, run: Run) -> None:
        self.config = config
        self.timeout_s = 60.0
        self.services: Any = None
        self.placement: Any = SimpleNamespace(
            uses_gpus=True,
            policy_slot=str,
            engine_slot=str,
            shared_slots=lambda number: range(number, number + 1),
            release=lambda: None,
        )
        quiet = SimpleNamespace(watch=lambda *_, **__: None, unwatch=lambda _: None, stop=lambda: None)
        self.monitor: Any = quiet
        self.session: Any = SimpleNamespace(close=lambda: None)
        self._limiters = None
        self._workers = []
        self._tasks = set()
        self._failure, self._policy_failure = (asyncio.get_running_loop().create_future() for _ in range(2))
        self._run = run
        run.pool = self

    @property
    def running(self) -> list[Any]:
        return self._workers

    async def reserve(self) -> None: ...

    def start(self, actor_class: Any, name: str, slot: Any, setup: Any, on_lost: Any, devices: Any = None) -> Any:
        actor = Rank(self._run, slot) if devices is None else Engine(self._run, devices[0], int(slot))
        worker: Any = Worker(name, actor, on_lost)
        self._workers.append(worker)
        return worker


async def train(started: RayBackend, *, reference: bool, critic: bool) -> None:
    """The order of `train/learning.py` and `train/loop.py`."""
    tasks = [Task(id=str(i), prompt=()) for i in range(2 * GPUS)]
    ranks = started.policy
    for step in range(1, STEPS + 1):
        assert len(
            await started.rollouts.run(RolloutRequest(tasks=tasks, step=step, plan=RolloutPlan(group_size=1)))
        ) == len(tasks)
        await ranks.call(PolicyRank.logprobs, [])
        if reference:
            await ranks.call(PolicyRank.reference_logprobs, [])
        if critic:
            await ranks.call(PolicyRank.values, [])
            await ranks.call(PolicyRank.update_critic, TrainBatch(rows=[], advantages=[]), step)
        await ranks.call(PolicyRank.update, TrainBatch(rows=[], advantages=[]), step)
        await started.sync_weights(step)
        await ranks.call(PolicyRank.stage)
    await started.rollouts.run(RolloutRequest(tasks=tasks, step=STEPS + 1, plan=RolloutPlan(group_size=1)))


LOST_IN = {
    "ipc": [
        *[
            "",
            "run_groups",
            "run_groups start",
            "run_groups update",
            "sleep",
            "logprobs",
            "update",
            "update start start",
        ],
        *["wake_weights", "begin_update", "next_weights", "receive_chunk", "finish_update", "rest", "wake", "stage"],
    ],
    "host": ["update", "put_weights", "update_weights", "wake"],
}
NEEDS = {
    "policy alone": frozenset[Need](),
    "reference": frozenset({Need.REFERENCE}),
    "reference and critic": frozenset({Need.REFERENCE, Need.VALUES}),
}


@pytest.mark.parametrize("needs", NEEDS)
@pytest.mark.parametrize(("transfer", "lost_in"), [(by, phase) for by, phases in LOST_IN.items() for phase in phases])
def test_no_device_holds_more_than_it_has_whatever_phase_an_engine_is_lost_in(
    transfer: str, lost_in: str, needs: str, make_inputs: Callable[..., Inputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = fitting(make_inputs, NEEDS[needs], transfer)
    run = Run(estimate(inputs), lost_in)

    async def play() -> None:
        started = await opened(run, monkeypatch)
        await train(started, reference=bool(NEEDS[needs]), critic=Need.VALUES in NEEDS[needs])
        workers = started.rollouts.workers
        while len(workers.dispatcher.workers) < GPUS:  # the last replacement
            await asyncio.wait_for(run.pool.unless_failed(asyncio.sleep(0)), timeout=5)
        assert workers.restarts == len(lost_in.split()) and run.lost_in == []
        assert {worker.actor.version for worker in workers.dispatcher.workers} == {STEPS}
        assert sorted(worker.actor.number for worker in workers.dispatcher.workers) == list(range(GPUS))
        await started.close()

    asyncio.run(asyncio.wait_for(play(), timeout=30))


def test_an_update_waits_for_an_engine_that_starts_and_is_given_the_weights_of_before(
    make_inputs: Callable[..., Inputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(estimate(fitting(make_inputs, frozenset(), "ipc")), "")

    async def play() -> None:
        started = await opened(run, monkeypatch)
        batch = TrainBatch(rows=[], advantages=[])
        await started.policy.call(PolicyRank.update, batch, 1)
        await started.sync_weights(1)
        engine = next(worker for worker in run.pool.running if str(worker) == f"rollout worker {LOST}")
        engine.kill()
        engine.on_lost(engine, WorkerLost(f"{engine} is lost: killed"))
        for _ in range(TICKS):  # the replacement takes memory now
            await asyncio.sleep(0)
        # Nothing needed log-probabilities before it.
        await asyncio.wait_for(started.policy.call(PolicyRank.update, batch, 2), timeout=5)
        await started.sync_weights(2)
        workers = started.rollouts.workers.dispatcher.workers
        assert [worker.actor.version for worker in workers] == [2] * GPUS
        await started.close()

    asyncio.run(asyncio.wait_for(play(), timeout=30))


def test_a_resumed_policy_has_room_for_an_optimiser_that_is_offloaded_afterwards(
    make_inputs: Callable[..., Inputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    offloaded = partial(make_inputs, "qwen3-14b", policy={"offload": Offload.OPTIMIZER})
    run = Run(estimate(fitting(offloaded, frozenset(), "ipc")), "")

    async def play() -> None:
        started = await opened(run, monkeypatch)
        await started.policy.call(PolicyRank.load, Path("step_000003"))
        await started.sync_weights(3)
        assert {worker.actor.version for worker in started.rollouts.workers.dispatcher.workers} == {3}
        await started.close()

    asyncio.run(asyncio.wait_for(play(), timeout=30))


def test_a_policy_whose_engines_have_failed_for_good_can_be_saved_until_a_rank_is_lost(
    make_inputs: Callable[..., Inputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(estimate(fitting(make_inputs, frozenset(), "ipc")), "update start start start")

    async def play() -> None:
        started = await opened(run, monkeypatch)
        with pytest.raises(InfraError, match="at most 3 rollout workers are replaced within 30 minutes"):
            await train(started, reference=False, critic=False)
        await started.policy.call(PolicyRank.stage)
        rank = run.pool.running[0]
        rank.kill()
        rank.on_lost(rank, WorkerLost("policy rank 0 is lost: killed"))
        with pytest.raises(WorkerLost, match=r"policy rank .* cannot be replaced"):
            await started.policy.call(PolicyRank.stage)
        await started.close()

    asyncio.run(asyncio.wait_for(play(), timeout=30))


def fitting(make_inputs: Callable[..., Inputs], needs: frozenset[Need], transfer: str) -> Inputs:
    """A run with as large a share for engines as the plan allows."""
    for share in (0.78, 0.7, 0.6, 0.5, 0.4):
        inputs = make_inputs(share=share, train={"kl_coef": 0.01} if needs else None)
        inputs = Inputs(config=inputs.config, shape=inputs.shape, machine=inputs.machine, needs=needs)
        inputs.config.engine.params.transfer = transfer
        if estimate(inputs).need <= inputs.machine.device_bytes:
            return inputs
    raise AssertionError("the plan refuses every share")


async def opened(run: Run, monkeypatch: pytest.MonkeyPatch) -> RayBackend:
    monkeypatch.setattr(backend, "WorkerPool", lambda config, **_: Pool(config, run))
    monkeypatch.setattr(policy.ray, "put", lambda value: value)
    return await RayBackend.start(run.plan.inputs.config, Any, folder=Any, tools=ToolNames())
