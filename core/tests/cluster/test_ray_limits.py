"""A limiter over processes: the rate holds for all of them together. Real Ray actors wait at a real limiter."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

import ray
from ray import cloudpickle

from ramet.cluster.ray.limits import RayLimiters, start_limiters
from ramet.errors import InfraError, PluginError
from ramet.helpers.limiter import BURST_S

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import tests
RATE, CALLS = 40.0, 20


class User:
    """Has the limiters as a worker has them: from a job that was pickled."""

    def __init__(self, job: bytes) -> None:
        self.limiters: RayLimiters = cloudpickle.loads(job)

    async def call(self, calls: int) -> list[float]:
        limiter, through = self.limiters.limiter("api", RATE), []
        for _ in range(calls):
            await limiter.wait()
            through.append(time.time())
        return through


@pytest.fixture
def limiters(two_nodes: None) -> Iterator[RayLimiters]:
    actor = start_limiters()
    yield RayLimiters(actor)
    ray.kill(actor)


def test_the_rate_holds_over_all_workers_and_the_driver(limiters: RayLimiters) -> None:
    job = cloudpickle.dumps(limiters)
    users: list[Any] = [ray.remote(User).options(num_cpus=0).remote(job) for _ in range(2)]
    ray.get([user.call.remote(1) for user in users])  # their processes are there

    async def driver() -> list[float]:
        limiter, through = limiters.limiter("api", RATE), []
        for _ in range(CALLS):
            await limiter.wait()
            through.append(time.time())
        return through

    refs = [user.call.remote(CALLS) for user in users]
    through = sorted([*asyncio.run(driver()), *(one for found in ray.get(refs) for one in found)])
    assert len(through) == 3 * CALLS
    assert through[-1] - through[0] >= (3 * CALLS - 1) / RATE - BURST_S - 0.1


def test_a_pause_holds_other_processes_too(limiters: RayLimiters) -> None:
    user = ray.remote(User).options(num_cpus=0).remote(cloudpickle.dumps(limiters))
    ray.get(user.call.remote(1))
    asyncio.run(limiters.limiter("api", RATE).pause(0.6))
    paused = time.time()
    [through] = ray.get(user.call.remote(1))
    assert through - paused >= 0.5


def test_who_is_cancelled_leaves_the_queue(limiters: RayLimiters) -> None:
    async def main() -> float:
        limiter = limiters.limiter("slow", 2)
        await limiter.wait()
        for gone in [asyncio.create_task(limiter.wait()) for _ in range(20)]:
            await asyncio.sleep(0.01)
            gone.cancel()
        started = time.monotonic()
        await limiter.wait()
        return time.monotonic() - started

    assert asyncio.run(main()) < 5


def test_another_rate_in_another_process_is_refused(limiters: RayLimiters) -> None:
    user = ray.remote(User).options(num_cpus=0).remote(cloudpickle.dumps(limiters))
    ray.get(user.call.remote(1))
    with pytest.raises(PluginError, match=r"^limiter 'api': .* 7 per s, .* 40 per s; "):
        asyncio.run(limiters.limiter("api", 7).wait())


def test_places_reasons_and_refusals_cross_processes(limiters: RayLimiters) -> None:
    async def main() -> InfraError:
        limiter = limiters.limiter("places", RATE, 1)
        async with limiter.place(30):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3), limiter.place(30):
                    pass
        async with asyncio.timeout(10), limiter.place(30):
            await limiter.pause(60, reason="the index is down", slower=True)
        with pytest.raises(InfraError) as caught:
            await limiter.wait(at_most_s=1)
        return caught.value

    refused = asyncio.run(main())
    assert str(refused) == "the index is down" and 55 < (refused.retry_after_s or 0) < 61


def test_a_process_that_is_lost_is_started_again_and_no_call_fails_or_hangs(limiters: RayLimiters) -> None:
    async def main() -> None:
        limiter = limiters.limiter("lost", 10, 1)
        async with limiter.place(600):
            waiting = [asyncio.create_task(limiter.wait()) for _ in range(30)]
            await asyncio.sleep(0.3)
            ray.kill(limiters._actor, no_restart=False)
            await limiter.pause(0.1)
            async with asyncio.timeout(30):
                await asyncio.gather(*waiting)
        async with asyncio.timeout(10), limiter.place(600):
            pass

    asyncio.run(main())


def test_a_process_that_does_not_come_back_is_infrastructure_that_calls_wait_for_elsewhere(
    limiters: RayLimiters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ramet.cluster.ray.limits.RESTART_S", 0.5)

    async def main() -> InfraError:
        limiter = limiters.limiter("gone", RATE)
        await limiter.wait()
        ray.kill(limiters._actor)
        with pytest.raises(InfraError) as caught:
            await limiter.wait()
        return caught.value

    error = asyncio.run(main())
    assert str(error).startswith("the process that keeps the limiters is lost: ") and error.retry_after_s == 0.5


def test_a_place_given_to_a_caller_that_was_cancelled_meanwhile_is_given_back(limiters: RayLimiters) -> None:
    async def main() -> None:
        limiter = limiters.limiter("cancelled", RATE, 1)

        async def hold() -> None:
            async with limiter.place(600):
                pass

        await hold()  # the actor is there
        task = asyncio.create_task(hold())
        await asyncio.sleep(0)
        time.sleep(0.5)  # the place is given, and this process has not looked yet
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(10), limiter.place(600):
            pass

    asyncio.run(main())
