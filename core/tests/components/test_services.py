"""What components are given when a run starts: rates that hold and a folder of their own."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from ramet.components.build import start_rewards
from ramet.components.services import LocalLimiters, RunServices
from ramet.errors import InfraError, PluginError
from ramet.helpers.limiter import BURST_S, RECOVERY_S, TokenBucket, local_limiter
from ramet.rollout.scoring import WeightedReward
from ramet.types import Limiter, Services


def services(folder: Path) -> RunServices:
    return RunServices(folder=folder, seed=7)


async def times(limiter: Limiter, calls: int, into: list[float]) -> None:
    for _ in range(calls):
        await limiter.wait()
        into.append(time.monotonic())


def test_the_rate_holds_over_all_users_of_a_limiter_of_one_name(tmp_path: Path) -> None:
    async def main() -> list[float]:
        run, let_through = services(tmp_path), list[float]()
        first, second = (run.of(name).limiter("api", 100) for name in ("tools.a", "rewards.b"))
        async with asyncio.TaskGroup() as group:
            for limiter in (first, second):
                group.create_task(times(limiter, 25, let_through))
        return let_through

    let_through = asyncio.run(main())
    assert len(let_through) == 50
    for first in let_through:
        within = [one for one in let_through if first <= one < first + 0.2]
        assert len(within) <= 100 * (0.2 + BURST_S) + 1
    assert let_through[-1] - let_through[0] >= 49 / 100 - BURST_S - 0.01


def test_waiters_are_served_in_order_and_several_permits_count_as_several() -> None:
    async def main() -> tuple[list[str], float]:
        limiter, order = LocalLimiters().limiter("api", 50), list[str]()

        async def one(name: str, n: int) -> None:
            await limiter.wait(n)
            order.append(name)

        started = time.monotonic()
        await asyncio.gather(one("a", 10), one("b", 20), one("c", 1))
        return order, time.monotonic() - started

    order, seconds = asyncio.run(main())
    assert order == ["a", "b", "c"]
    assert seconds >= 30 / 50 - BURST_S - 0.01


def test_a_pause_holds_all_including_those_that_wait_already() -> None:
    async def main() -> float:
        limiter = LocalLimiters().limiter("api", 10)
        await limiter.wait(3)
        started = time.monotonic()
        waiting = asyncio.create_task(limiter.wait())
        await asyncio.sleep(0)
        await limiter.pause(0.5)
        await waiting
        return time.monotonic() - started

    assert asyncio.run(main()) >= 0.49


def test_a_cancelled_waiter_delays_no_other() -> None:
    async def main() -> float:
        limiter = LocalLimiters().limiter("api", 2)
        await limiter.wait()
        gone = [asyncio.create_task(limiter.wait()) for _ in range(10)]
        await asyncio.sleep(0.01)
        for one in gone:
            one.cancel()
        started = time.monotonic()
        await limiter.wait()
        return time.monotonic() - started

    assert asyncio.run(main()) < 2


def test_a_limiter_has_one_rate(tmp_path: Path) -> None:
    run = services(tmp_path)
    run.of("tools.a").limiter("api", 5)
    with pytest.raises(PluginError) as caught:
        run.of("tools.b").limiter("api", 6)
    assert str(caught.value) == (
        "limiter 'api': asked for with 6 per s, and before with 5 per s; a limiter has one rate in all of a run"
    )


def test_a_limiter_has_one_number_of_places(tmp_path: Path) -> None:
    run = services(tmp_path)
    run.of("tools.a").limiter("api", 5, 2)
    with pytest.raises(PluginError) as caught:
        run.of("tools.b").limiter("api", 5)
    assert str(caught.value) == (
        "limiter 'api': asked for with None concurrent calls, and before with 2; a limiter has one number of places in "
        "all of a run"
    )


@pytest.mark.parametrize("concurrent", [0, 1.5])
def test_places_are_an_integer_over_0(concurrent: Any) -> None:
    with pytest.raises(PluginError) as caught:
        LocalLimiters().limiter("api", 1, concurrent)
    assert str(caught.value) == (f"limiter 'api': {concurrent!r} concurrent calls; allowed: an integer over 0, or None")


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), "5"])
def test_a_rate_is_a_number_over_0(rate: Any) -> None:
    with pytest.raises(PluginError) as caught:
        LocalLimiters().limiter("api", rate)
    assert str(caught.value) == f"limiter 'api': a rate of {rate!r} per s; allowed: a finite number over 0"


def test_a_component_has_a_folder_of_its_own_that_is_created_at_its_first_use(tmp_path: Path) -> None:
    mine = services(tmp_path / "services").of("tools.a")
    assert not (tmp_path / "services").exists()
    assert mine.folder == tmp_path / "services" / "tools.a" and mine.folder.is_dir()
    assert mine.seed == 7


class Starts:
    def __init__(self) -> None:
        self.given: list[Services] = []

    async def start(self, services: Services) -> None:
        self.given.append(services)


def test_rewards_are_started_and_those_without_a_start_are_left_alone(tmp_path: Path) -> None:
    first, second = Starts(), object()
    rewards: list[Any] = [
        WeightedReward(name="a", plugin="p", reward=first),
        WeightedReward(name="b", plugin="p", reward=second),
    ]
    asyncio.run(start_rewards(rewards, services(tmp_path)))
    assert [one.folder.name for one in first.given] == ["rewards.a"]


def test_who_would_wait_too_long_is_told_at_once_how_long_and_why() -> None:
    async def main() -> list[InfraError]:
        limiter, refused = TokenBucket(10), list[InfraError]()
        await limiter.wait(20)
        for _ in range(2):
            try:
                await limiter.wait(at_most_s=0.5)
            except InfraError as error:
                refused.append(error)
            await limiter.pause(30, reason="the index is down")
        return refused

    started = time.monotonic()
    busy, down = asyncio.run(main())
    assert time.monotonic() - started < 0.5
    assert str(busy) == "more calls than 10 per s" and busy.retry_after_s == pytest.approx(1.9, abs=0.1)
    assert str(down) == "the index is down" and down.retry_after_s == pytest.approx(30, abs=0.2)


def test_a_queue_counts_when_a_turn_is_estimated() -> None:
    async def main() -> None:
        limiter = local_limiter(10)
        queued = [asyncio.create_task(limiter.wait()) for _ in range(30)]
        await asyncio.sleep(0)
        with pytest.raises(InfraError):
            await limiter.wait(at_most_s=1)
        for one in queued:
            one.cancel()

    asyncio.run(main())


def test_those_that_wait_already_are_told_of_a_pause() -> None:
    async def main() -> list[Any]:
        limiter = local_limiter(4)
        await limiter.wait()
        queued = [asyncio.create_task(limiter.wait(at_most_s=2)) for _ in range(3)]
        await asyncio.sleep(0.01)
        await limiter.pause(60, reason="429")
        return await asyncio.gather(*queued, return_exceptions=True)

    assert [str(error) for error in asyncio.run(main())] == ["429"] * 3


def test_a_rate_that_was_too_high_is_halved_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[float]:
        now, rates = [100.0], list[float]()
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        limiter = TokenBucket(32)
        for _ in range(6):
            await limiter.pause(0, slower=True)
            rates.append(limiter.rate)
        now[0] += 3 * RECOVERY_S
        return [*rates, limiter.rate]

    assert asyncio.run(main()) == [16, 8, 4, 2, 2, 2, 16]


def test_places_bound_what_runs_at_the_same_time_and_are_given_back() -> None:
    async def main() -> tuple[int, float]:
        limiter, running, most = local_limiter(1000, 3), 0, 0

        async def call() -> None:
            nonlocal running, most
            async with limiter.place(5):
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.02)
                running -= 1

        started = time.monotonic()
        await asyncio.gather(*(call() for _ in range(9)))
        return most, time.monotonic() - started

    most, seconds = asyncio.run(main())
    assert most == 3 and seconds >= 0.06


def test_a_place_that_is_held_too_long_is_given_to_others() -> None:
    async def main() -> float:
        limiter, started = TokenBucket(1000, 1), time.monotonic()
        held = await limiter.take_place(0.1)
        async with limiter.place(5):
            waited = time.monotonic() - started
            limiter.leave_place(held)  # its lease has ended: nothing is given back twice
            assert limiter._places is not None and limiter._places.locked()
        return waited

    assert 0.09 <= asyncio.run(main()) < 2
