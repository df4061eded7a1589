"""What vLLM reads from the environment, set before it is imported. What the user has set stands."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from ramet.errors import ConfigError

REQUIRED = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the probe's numbers are read in this process
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # it does not call logits processors of this kind
}
DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # below it: pages about settings that were made here on purpose
    "VLLM_NO_USAGE_STATS": "1",  # nothing here reports to anybody
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # this process has threads, which a forked one would hang on
}
CPU_DEFAULTS = {
    "TORCHDYNAMO_DISABLE": "1",  # even eager mode compiles helpers: 8 s at the first request, for no gain
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # trainer, tools and other processes share the cores
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "1",  # 0.32.0: a worker process hangs when it has finished its work
}


def prepare_environment(*, cpu: bool) -> None:
    """Raises `ConfigError` if the user has set what this engine cannot work with."""
    defaults: Mapping[str, str] = {**REQUIRED, **DEFAULTS, **(CPU_DEFAULTS if cpu else {})}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])  # while vLLM is imported, nothing else does
    for name, value in REQUIRED.items():
        if os.environ[name] != value:
            raise ConfigError(f"engine=vllm: needs {name}={value} in the environment, got {os.environ[name]!r}")
