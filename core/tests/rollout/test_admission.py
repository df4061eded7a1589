from __future__ import annotations

import asyncio

from ramet.rollout.admission import Admission


def test_groups_enter_in_order_and_a_large_one_is_not_overtaken() -> None:
    async def main() -> list[str]:
        admission, entered = Admission(4), []

        async def group(name: str, n: int) -> None:
            await admission.enter(n)
            entered.append(name)

        async with asyncio.TaskGroup() as tasks:
            for name, n in (("first", 3), ("large", 4), ("small", 1)):
                tasks.create_task(group(name, n))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert entered == ["first"]
            admission.leave(3)
            await asyncio.sleep(0)
            assert entered == ["first", "large"]
            admission.leave(4)
        return entered

    assert asyncio.run(main()) == ["first", "large", "small"]


def test_a_group_that_stops_waiting_holds_up_nobody() -> None:
    async def main() -> int:
        admission = Admission(2)
        await admission.enter(2)
        gone = asyncio.create_task(admission.enter(2))
        waits = asyncio.create_task(admission.enter(1))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        admission.leave(2)
        await waits
        return admission.free

    assert asyncio.run(main()) == 1


def test_a_group_cancelled_in_the_moment_of_its_admission_gives_its_places_back() -> None:
    async def main() -> int:
        admission = Admission(2)
        await admission.enter(2)
        waits = asyncio.create_task(admission.enter(2))
        await asyncio.sleep(0)
        admission.leave(2)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        return admission.free

    assert asyncio.run(main()) == 2
