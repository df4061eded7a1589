"""Starting vLLM: its options, the environment that its processes inherit, and errors that name the cause."""

from __future__ import annotations

import os
import secrets
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

import torch
from vllm import AsyncEngineArgs, SamplingParams
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.inputs.engine import tokens_input
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from ramet.config.schema import ModelConfig
from ramet.engines.config import VllmEngineConfig
from ramet.engines.vllm.executors import OneWorkerExecutor, WorkersExecutor
from ramet.engines.vllm.schedulers import CountingAsyncScheduler, CountingScheduler
from ramet.engines.vllm.weight_transfer import BACKEND
from ramet.engines.vllm.worker_extension import NAME_KEY, LogprobProcessor, WorkerExtension
from ramet.errors import ConfigError
from ramet.processes import ownership

CPU_KV_CACHE_BYTES = 2**30
CPU_BLOCK = 32  # tokens; the prefix cache works in full blocks, and its CPU kernels need a multiple of this
SEED = 0  # of vLLM's own generator; requests bring other seeds
END_S = 10.0  # for vLLM to end its processes; then they are killed


async def launch(
    config: VllmEngineConfig, *, model: ModelConfig, max_tokens: int, cpu: bool, can_sleep: bool
) -> AsyncLLM:
    """A running engine that serves the model's folder, on the running loop. The caller ends it."""
    if current_platform.is_cpu() != cpu:
        has, wants = ("CPU", "a GPU") if current_platform.is_cpu() else ("GPU", "the CPU")
        raise ConfigError(f"engine=vllm: the installed vLLM is the {has} build, but model.device means {wants}")
    arguments = AsyncEngineArgs(
        **_options(config, model, max_tokens, cpu=cpu),
        tensor_parallel_size=config.tensor_parallel,
        distributed_executor_backend=WorkersExecutor if config.tensor_parallel > 1 else OneWorkerExecutor,
        worker_extension_cls=f"{WorkerExtension.__module__}.{WorkerExtension.__name__}",
        logits_processors=[f"{LogprobProcessor.__module__}:{LogprobProcessor.__name__}"],
        weight_transfer_config=WeightTransferConfig(backend=BACKEND),
        enable_sleep_mode=can_sleep,
        enable_log_requests=False,
    )
    with _reported("start with", model), _inherited_by_processes(cpu=cpu), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of vLLM, about its own code
        llm = AsyncLLM.from_engine_args(arguments)
    try:
        with _reported("compute", model):  # some kernels refuse a model only when they run
            params = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False, extra_args={NAME_KEY: ""})
            async for _ in llm.generate(tokens_input([0]), params, "first"):
                pass
    except BaseException:
        end_processes(llm)
        raise
    return llm


def end_processes(llm: AsyncLLM) -> None:
    """Returns when vLLM's processes have ended. May be called twice."""
    client: Any = llm.engine_core
    llm.shutdown(timeout=END_S)
    for process in client.resources.engine_manager.processes:
        process.join(END_S)  # vLLM does not wait for those that it kills, or that end by themselves
        process.kill()
        process.join()


@contextmanager
def _inherited_by_processes(*, cpu: bool) -> Iterator[None]:
    """Settings of processes that start now: they end with this one, have as many threads, and get no signal to stop.

    A terminal sends SIGINT, and a job system or `timeout` sends SIGTERM, to all processes of a run. vLLM's would end at
    once, and the step that is running with them. SIGTERM of their parent's ends them (`end_by_parent_alone`).
    """
    resource_tracker.ensure_running()  # otherwise vLLM starts it here, and that unblocks the signals
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    variables = ownership() | ({"OMP_NUM_THREADS": str(torch.get_num_threads())} if cpu else {})
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _reported(what: str, model: ModelConfig) -> Iterator[None]:
    try:
        yield
    except (ValueError, RuntimeError, NotImplementedError, EngineDeadError, EngineGenerateError) as error:
        raise ConfigError(f"engine=vllm: vLLM cannot {what} the model in {model.path!r}: {error}") from error


def _options(config: VllmEngineConfig, model: ModelConfig, max_tokens: int, *, cpu: bool) -> dict[str, Any]:
    """Text stays outside: no tokenizer. On a GPU a step is scheduled while the one before it computes, so a token may
    be sampled after one that ends its request; it is dropped. vLLM's CPU build has no such scheduling.
    """
    options: dict[str, Any] = {}
    tokens = config.prefill_tokens
    if cpu:
        # No prompts in parts: one in parts breaks requests with seeds (0.32.0: "CPU Generator does not use offset").
        options |= {"block_size": CPU_BLOCK, "enable_chunked_prefill": False}
        tokens = None if tokens is None else max(tokens, max_tokens)
    if tokens is not None:
        options["max_num_batched_tokens"] = tokens
    return options | dict(
        model=model.path,
        skip_tokenizer_init=True,
        generation_config="vllm",
        trust_remote_code=model.trust_remote_code,
        dtype=model.dtype.value,
        max_model_len=max_tokens,
        max_num_seqs=config.slots,
        enable_prefix_caching=True,
        async_scheduling=not cpu,
        stream_interval=config.stream_interval,
        scheduler_cls=CountingScheduler if cpu else CountingAsyncScheduler,
        seed=SEED if config.seeds else secrets.randbits(31),  # engines and resumed runs must not draw the same
        enforce_eager=cpu if config.enforce_eager is None else config.enforce_eager,
        kv_cache_memory_bytes=config.kv_cache_bytes or (CPU_KV_CACHE_BYTES if cpu else None),
        gpu_memory_utilization=config.gpu_memory_utilization,
        disable_log_stats=True,
        logprobs_mode="processed_logprobs",  # for a request's log-probabilities: at its temperature, as Ramet's all are
        use_tqdm_on_load=False,
    )
