"""vLLM's executors, for what must happen in its scheduler's process, before that starts workers.

vLLM makes the executor of an engine in that process; it imports this module there (`distributed_executor_backend`).
"""

from __future__ import annotations

from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from ramet.processes import end_by_parent_alone


class OneWorkerExecutor(UniProcExecutor):
    """The model is in the scheduler's process."""

    def _init_executor(self) -> None:
        end_by_parent_alone()
        super()._init_executor()


class WorkersExecutor(MultiprocExecutor):
    """A process for each device. Workers call `end_by_parent_alone` themselves (`worker_extension`)."""

    def _init_executor(self) -> None:
        end_by_parent_alone()
        super()._init_executor()
