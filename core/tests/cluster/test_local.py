"""Weights that come in another order than they were made in, where the newest stay, and counts that are left out."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from ramet.cluster.counts import Counts, total_metrics
from ramet.cluster.local import LocalBackend, LocalRollouts
from ramet.cluster.ray.actors import RolloutActor
from ramet.engines.counters import BUSY
from ramet.engines.vllm import VllmEngine
from ramet.errors import InfraError
from ramet.rollout.tools.stats import ToolStats


class Engine(VllmEngine):
    """Notes the versions that it is given."""

    def __init__(self) -> None:
        self.given: list[int] = []

    @property
    def policy_version(self) -> int:
        return self.given[-1] if self.given else 0

    async def update_weights(self, weights: Any, version: int) -> None:
        self.given.append(version)

    async def begin_update(self) -> None: ...

    async def finish_update(self, version: int) -> None:
        self.given.append(version)

    def metrics(self) -> dict[str, float]:
        return {BUSY: 0.5, "engine/prompt_tokens": 10.0}


class Worker:
    """Each look finds another call of the tool."""

    def take_tool_stats(self) -> dict[str, ToolStats]:
        return {"python": ToolStats(calls=1, run_s=[0.1])}

    def metrics(self) -> dict[str, float]:
        return {"rollout/rollouts": 4.0, "tool/python/calls": 0.0}


def rollout_actor() -> tuple[RolloutActor, Engine]:
    actor, rollouts, engine = object.__new__(RolloutActor), object.__new__(LocalRollouts), Engine()
    actor.rollouts, rollouts.engine, rollouts.version = rollouts, engine, engine.policy_version
    return actor, engine


async def bucket(after_s: float) -> dict[str, Any]:
    await asyncio.sleep(after_s)
    return {}


def test_weights_that_were_longer_on_their_way_than_newer_ones_are_refused() -> None:
    async def story() -> None:
        actor, engine = rollout_actor()
        late, soon = (
            asyncio.create_task(actor.update_weights([bucket(after_s)], version))  # type: ignore[list-item]
            for after_s, version in ((0.05, 1), (0.0, 2))
        )
        assert await soon == 2
        with pytest.raises(InfraError) as caught:
            await late
        assert str(caught.value) == "weights of version 1 came after version 2: refused"
        assert (actor.rollouts.version, engine.given) == (2, [2])
        assert await actor.update_weights([bucket(0)], 2) == 2  # type: ignore[list-item]  # the same again: after sleep

    asyncio.run(story())


def test_an_update_that_has_begun_is_the_newest_until_a_newer_one_begins() -> None:
    async def story() -> None:
        actor, engine = rollout_actor()
        await actor.begin_update(3)
        assert actor.rollouts.version == 3  # requests from now on wait for it
        with pytest.raises(InfraError, match="weights of version 2 came after version 3"):
            await actor.update_weights([bucket(0)], 2)  # type: ignore[list-item]
        await actor.begin_update(4)
        assert await actor.finish_update(3) == 3
        assert (actor.rollouts.version, engine.given) == (4, [3])

    asyncio.run(story())


def test_what_is_left_out_is_in_no_metrics_and_what_was_before_it_is() -> None:
    async def story() -> None:
        rollouts = object.__new__(LocalRollouts)
        rollouts.engine, rollouts.worker = Engine(), cast(Any, Worker())
        rollouts._kept, rollouts._counted_at = [], time.monotonic()
        async with rollouts.uncounted():  # a look, and another at its end
            pass
        for calls in (2.0, 1.0):  # what was before it, and what came after
            found = await rollouts.metrics()
            assert found["rollout/rollouts"] == 4
            assert found["tool/python/calls"] == calls and found["engine/prompt_tokens"] == 10 * calls
            assert found[BUSY] == pytest.approx(0.5)

    asyncio.run(story())


def test_the_busy_share_of_stretches_of_time_counts_by_their_length() -> None:
    def counts(share: float, seconds: float) -> Counts:
        return Counts(tools={}, engine={BUSY: share, "engine/prompt_tokens": 1.0}, seconds=seconds)

    found = total_metrics([counts(1.0, 30.0), counts(0.0, 10.0)])
    assert (found[BUSY], found["engine/prompt_tokens"]) == (0.75, 2)


def test_the_policy_gives_memory_back_before_an_engine_on_its_gpu_loads_new_weights() -> None:
    """Else vLLM's process finds what an update had at its peak still reserved, and the run ends at its first sync."""
    order: list[str] = []

    class Side:
        async def call(self, work: Any) -> list[Any]:
            order.append(work.__name__)
            return []

        async def update_weights(self, weights: Any, version: int) -> None:
            order.append(f"load {version}")

    side = cast(Any, Side())
    asyncio.run(LocalBackend(side, side, cast(Any, None)).sync_weights(1))
    assert order == ["rest", "weights_of", "load 1"]
