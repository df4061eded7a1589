"""vLLM's executors, for work in its scheduler's process: before that starts workers, and during calls to them.

vLLM makes the executor of an engine in that process; it imports this module there (`distributed_executor_backend`).
"""

from __future__ import annotations

from typing import Any

from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from ramet.engines.vllm.schedulers import PRESSURE
from ramet.processes import end_by_parent_alone


class _AddsPressure:
    def collective_rpc(self, method: Any, *arguments: Any, **options: Any) -> Any:
        """Call vLLM's method; numbers that are fetched after sampling end with the scheduler's counts."""
        answers = super().collective_rpc(method, *arguments, **options)  # type: ignore[misc]
        return [*answers, PRESSURE.take()] if method == "ramet_get_numbers" else answers


class OneWorkerExecutor(_AddsPressure, UniProcExecutor):
    """The model is in the scheduler's process."""

    def _init_executor(self) -> None:
        end_by_parent_alone()
        super()._init_executor()


class WorkersExecutor(_AddsPressure, MultiprocExecutor):
    """A process for each device. Workers call `end_by_parent_alone` themselves (`worker_extension`)."""

    def _init_executor(self) -> None:
        end_by_parent_alone()
        super()._init_executor()
