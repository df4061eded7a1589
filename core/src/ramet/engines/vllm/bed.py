"""Sleep of the engine inside this process. Used by the thread that owns vLLM, while nothing is computed."""

from __future__ import annotations

import logging

from vllm import LLMEngine

from ramet.engines.sleeping import ONLY_PAUSES

logger = logging.getLogger(__name__)


class Bed:
    """On a GPU, weights go to host memory and the cache of keys and values is given back. A CPU frees nothing."""

    def __init__(self, engine: LLMEngine, *, can_sleep: bool) -> None:
        self._engine = engine
        self._can_sleep = can_sleep
        self._said = False

    def sleep(self) -> None:
        """Requests under way stay, and compute their caches again behind `wake`."""
        if self._can_sleep:
            self._engine.sleep(level=1, mode="keep")
            return
        if not self._said:
            self._said = True
            logger.info(ONLY_PAUSES, "vllm")
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("vLLM did not reset its prefix cache: blocks are still in use")

    def wake(self) -> None:
        if self._can_sleep:
            self._engine.wake_up()
