"""Starting vLLM in this process and ending it, with as few traces in the process as it allows.

vLLM treats the process as its own: it seeds every generator, replaces `torch.set_num_threads` by nothing, and tears
torch.distributed down when it ends, for whoever uses it. The first two are undone here; the last means one at a time.
"""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from vllm import AsyncEngineArgs, EngineArgs, LLMEngine, SamplingParams
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.inputs.engine import tokens_input
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from ramet.config.schema import ModelConfig
from ramet.engines.config import VllmEngineConfig
from ramet.engines.vllm.owner import own
from ramet.engines.vllm.probe import KEY, Probe, processor
from ramet.engines.vllm.receive import BACKEND
from ramet.errors import ConfigError

CPU_KV_CACHE_BYTES = 2**30
CPU_BLOCK = 32  # tokens; the prefix cache works in whole blocks, and its CPU kernels need a multiple of this
_alone = threading.Lock()


@contextmanager
def launched(
    config: VllmEngineConfig, *, model: ModelConfig, max_tokens: int, cpu: bool, can_sleep: bool
) -> Iterator[tuple[LLMEngine, Probe]]:
    """A running engine that serves the model's folder. Everything happens in the thread that enters."""
    _check_build(cpu=cpu)
    if not _alone.acquire(blocking=False):
        raise RuntimeError("another vLLM engine lives in this process; close it first")
    try:
        probe = Probe()
        options = _options(config, model, max_tokens, cpu=cpu)
        arguments = EngineArgs(**options, logits_processors=[processor(probe)], enable_sleep_mode=can_sleep)
        with _reported("start with", model), _process_kept():
            engine = LLMEngine.from_engine_args(arguments)
        try:
            with _reported("compute", model):
                _try_out(engine)
            yield engine, probe
        finally:
            engine.engine_core.shutdown()
    finally:
        _alone.release()


async def launch_async(
    config: VllmEngineConfig, *, model: ModelConfig, max_tokens: int, cpu: bool, can_sleep: bool
) -> AsyncLLM:
    """A running engine in processes of its own, on the running loop. The caller ends it."""
    _check_build(cpu=cpu)
    own()
    arguments = AsyncEngineArgs(
        **_options(config, model, max_tokens, cpu=cpu),
        tensor_parallel_size=config.tensor_parallel,
        distributed_executor_backend="mp" if config.tensor_parallel > 1 else "uni",
        worker_extension_cls="ramet.engines.vllm.extension.Extension",
        logits_processors=["ramet.engines.vllm.extension:Watch"],
        weight_transfer_config=WeightTransferConfig(backend=BACKEND if config.transfer == "host" else config.transfer),
        enable_sleep_mode=can_sleep,
        enable_log_requests=False,
    )
    with _reported("start with", model), _process_kept():
        llm = AsyncLLM.from_engine_args(arguments)
    try:
        with _reported("compute", model):
            async for _ in llm.generate(tokens_input([0]), _first(), "first"):
                pass
    except BaseException:
        llm.shutdown()
        raise
    return llm


def _check_build(*, cpu: bool) -> None:
    if current_platform.is_cpu() != cpu:
        has, wants = ("CPU", "a GPU") if current_platform.is_cpu() else ("GPU", "the CPU")
        raise ConfigError(f"engine=vllm: the installed vLLM is the {has} build, but model.device means {wants}")


@contextmanager
def _reported(what: str, model: ModelConfig) -> Iterator[None]:
    try:
        yield
    except (ValueError, RuntimeError, NotImplementedError, EngineDeadError, EngineGenerateError) as error:
        raise ConfigError(f"engine=vllm: vLLM cannot {what} the model in {model.path!r}: {error}") from error


def _try_out(engine: LLMEngine) -> None:
    """Sample one token, since some kernels refuse a model only when they run."""
    engine.add_request("first", tokens_input([0]), _first())
    while engine.has_unfinished_requests():
        engine.step()


def _first() -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=1, detokenize=False, extra_args={KEY: ""})


def _options(config: VllmEngineConfig, model: ModelConfig, max_tokens: int, *, cpu: bool) -> dict[str, Any]:
    """Text stays outside: no tokenizer. Nothing is sampled ahead: a request that ends has ended everywhere."""
    options: dict[str, Any] = {}
    tokens = config.prefill_tokens
    if cpu:
        # Whole prompts: one in parts breaks requests with seeds (0.32.0: "CPU Generator does not use offset").
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
        async_scheduling=False,
        enforce_eager=cpu if config.enforce_eager is None else config.enforce_eager,
        kv_cache_memory_bytes=config.kv_cache_bytes or (CPU_KV_CACHE_BYTES if cpu else None),
        gpu_memory_utilization=config.gpu_memory_utilization,
        disable_log_stats=True,
        use_tqdm_on_load=False,
    )


@contextmanager
def _process_kept() -> Iterator[None]:
    """Give the process its random states and its `torch.set_num_threads` back."""
    set_num_threads = torch.set_num_threads
    states = random.getstate(), np.random.get_state()
    set_num_threads(torch.get_num_threads())  # OpenMP counts by thread, and this one is new
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of vLLM, about its own code
            yield
    finally:
        torch.set_num_threads = set_num_threads
        random.setstate(states[0])
        np.random.set_state(states[1])
