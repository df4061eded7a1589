"""Ray's errors as Ramet's. How calls of workers fail is tested with real ones in `test_ray_rollouts`."""

from __future__ import annotations

import asyncio
import errno
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("ray")

from ray.exceptions import RayTaskError

import ramet.cluster.ray.worker
from ramet.cluster.ray.actors import PolicyActor, RolloutActor
from ramet.cluster.ray.worker import RayWorker, WorkerLost, death_cause, translated, variables
from ramet.errors import InfraError
from ramet.io.os_errors import os_error_text
from ramet.policy.progress import PassProgress
from ramet.policy.rank import PolicyRank


def test_an_error_of_the_system_in_an_actor_is_the_same_one_line_here():
    """As Ray brings it: pickled, and wrapped in an error of its own."""
    error = OSError(errno.ENOSPC, "No space left on device", "runs/x/model")
    wrapped = RayTaskError("export", "Traceback …", pickle.loads(pickle.dumps(error)))
    found = translated(wrapped, "policy rank 0 (node a, pid 3)")
    assert isinstance(found, OSError)
    assert os_error_text(found).startswith("runs/x/model: No space left")


def test_a_death_is_reported_in_one_line():
    text = (
        "The actor died unexpectedly before finishing this task.\n\tclass_name: A\n\tpid: 3\nThe actor is dead because "
        "its worker process has died. Worker exit type: NODE_OUT_OF_MEMORY Worker exit detail: Task was killed due to "
        "the node running low on memory.\nMemory on the node was 15GB / 16GB. Some common causes include: (1) x"
    )
    assert death_cause(Exception(text)) == (
        "Task was killed due to the node running low on memory. Memory on the node was 15GB / 16GB."
    )
    node = (
        "The actor died unexpectedly before finishing this task.\n\tpid: 3\nThe actor died because its node has died."
    )
    assert death_cause(Exception(node)) == "The actor died because its node has died."


class Clock:
    """Of the module: waits take no time, and what happens in them is played."""

    def __init__(self, happens: Callable[[int], None]) -> None:
        self.now = 100.0
        self.waits = 0
        self._happens = happens

    def monotonic(self) -> float:
        return self.now

    async def wait(self, _: object, *, timeout: float) -> None:
        self.now += 0.9 * timeout
        self.waits += 1
        self._happens(self.waits)
        self.now += 0.1 * timeout
        await asyncio.sleep(0)  # an answer arrives by the loop


@pytest.mark.parametrize("ends", [True, False])
def test_an_update_ends_by_time_since_its_last_micro_batch(ends: bool, monkeypatch: pytest.MonkeyPatch):
    answer: Future[str] = Future()
    worker = RayWorker.__new__(RayWorker)
    worker.name, worker.process, worker.progress, worker._passed_at = "policy rank 0", None, None, 0.0
    ref = SimpleNamespace(future=lambda: answer)
    worker.actor = SimpleNamespace(update=SimpleNamespace(remote=lambda *_: ref))

    def happens(number: int) -> None:
        worker.note_progress(PassProgress("update", min(number, 3), 9))
        if ends and number == 4:
            answer.set_result("done")

    clock = Clock(happens)
    monkeypatch.setattr(ramet.cluster.ray.worker, "time", clock)
    monkeypatch.setattr(ramet.cluster.ray.worker.asyncio, "wait", clock.wait)

    async def called() -> str:
        return str(await worker.call(10.0, PolicyRank.update, cast(Any, None), 1))

    if ends:
        assert asyncio.run(called()) == "done"
    else:
        late = r"^policy rank 0 did not finish `update` within 10 s of its last micro-batch \(cluster\.timeout_s\)$"
        with pytest.raises(InfraError, match=late):
            asyncio.run(called())
    assert clock.now > 100.0 + 2 * 10.0


def test_settings_of_torchs_allocator_are_the_users_by_its_older_name_too():
    """torch reads PYTORCH_ALLOC_CONF first."""
    assert variables(PolicyActor.ENVIRONMENT, 3, {}) == {
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "OMP_NUM_THREADS": "3",
    }
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        given = {name: "max_split_size_mb:64"}
        assert variables(PolicyActor.ENVIRONMENT, None, given) == given


class Engine:
    """It sleeps no more; `failure` says whether it has failed for good."""

    failure: str | None = None

    async def sleep(self) -> None:
        raise InfraError("the vllm engine failed: falling asleep: EngineDeadError")

    async def wake_weights(self) -> None: ...

    async def wake(self) -> None: ...


def test_an_engine_that_died_while_it_was_idle_is_a_lost_worker():
    actor: Any = RolloutActor.__new__(RolloutActor)
    engine = Engine()
    actor.rollouts = SimpleNamespace(engine=engine)
    with pytest.raises(InfraError) as found:
        asyncio.run(actor.sleep())
    assert not isinstance(found.value, WorkerLost)  # it works, and what it was asked does not
    engine.failure = "the vllm engine failed: falling asleep: EngineDeadError"
    with pytest.raises(WorkerLost, match="is lost: the vllm engine failed: falling asleep"):
        asyncio.run(actor.sleep())
