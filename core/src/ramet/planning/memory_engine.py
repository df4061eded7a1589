"""An engine's memory on each of its devices, in bytes: weights, keys and values, and work memory.

    keys and values of a token: 2 * layers * kv_heads * head_dim * (bytes of model.dtype)

`tensor_parallel` devices share weights and heads. The cache of the engine `torch` is exact; on a CPU that is the most
that it may become, since it takes memory by need (engines/torch/cache.py). vLLM takes a share of the device,
`gpu_memory_utilization`, and what weights and work leave of it are keys and values; with `kv_cache_bytes` it takes
those.

An engine in a separate process has its own CUDA context on each of its devices, which stays while it sleeps. vLLM
always is (AsyncLLM starts its processes), and its share does not count the context: it measures from after it was made.
The engine `torch` is with `cluster=ray`; with `cluster=local` it uses the policy's process.
"""

from __future__ import annotations

from dataclasses import dataclass

from ramet.config.schema import Config, Dtype
from ramet.engines.config import TorchEngineConfig, VllmEngineConfig
from ramet.engines.torch.cache import round_up
from ramet.engines.torch.packed import MIN_PARAMETERS
from ramet.planning.memory_policy import WORK, longest_sequence, sharded
from ramet.planning.model_shape import ModelShape
from ramet.planning.placement import tensor_parallel

ENGINE_WEIGHTS, CACHE = "engine weights", "keys and values"
VLLM_CPU_CACHE = 2**30  # vLLM on a CPU without engine.params.kv_cache_bytes (engines/vllm/launch.py)
CUDA_CONTEXT = 2**29  # of a process: 426 MiB measured (torch 2.10, CUDA 13), more when more kernels are loaded
# What a vLLM engine keeps while it sleeps. Assumptions: no GPU was there to measure; vLLM logs its own at the start.
CUDA_GRAPHS = 2**30  # 0.32.0 leaves them on the device (`sleep_mode_offload_cudagraph` is off)
WORKSPACES = (394 + 32) * 2**20  # FlashInfer's (VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE) and cuBLAS's on Hopper
NCCL = 2**29  # buffers and kernels of a process that exchanges with other devices; an assumption too
VLLM_TOKENS = 8192  # tokens of a round where engine.params.prefill_tokens leaves it to vLLM; its choice may be larger


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Per device. Cache in bytes for so many tokens; `wanted` has room for all slots at full length."""

    parts: dict[str, int]
    token_bytes: int
    wanted: int
    sequence: int  # one rollout at full length: the least that an engine needs
    sleeps: bool = False  # gives its memory back while the policy trains
    context: int = 0  # of the engine's processes, awake or not
    asleep: int = 0  # its other memory; awake it is a part of `engine.params.gpu_memory_utilization`

    @property
    def cache(self) -> int:
        return self.parts[CACHE]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def engine_memory(config: Config, shape: ModelShape, device_bytes: int | None, *, cuda: bool) -> EngineMemory | None:
    """Return an engine's memory; None if it is not known here, as for an engine elsewhere."""
    match config.engine.params:
        case TorchEngineConfig() as options:
            return _torch(config, options, shape, cuda=cuda)
        case VllmEngineConfig() as options:
            return _vllm(config, options, shape, device_bytes if cuda else None, cuda=cuda)
    return None


def token_bytes(config: Config, shape: ModelShape) -> int:
    """Keys and values of one token on one device. Heads that cannot be shared out are on every device."""
    heads = -(-shape.kv_heads // tensor_parallel(config))
    return 2 * shape.layers * heads * shape.head_dim * _size(config)


def _torch(config: Config, options: TorchEngineConfig, shape: ModelShape, *, cuda: bool) -> EngineMemory:
    """Cache: slots * the longest sequence, rounded up. Work: float32 logits of all slots three times, the scores of a
    decode step, and three of the MLP's products for the tokens of one prefill. On a CPU it packs float32 weights, and
    keeps the weights of an embedding in addition to its tied output head's.
    """
    most = options.max_tokens or longest_sequence(config)
    each = token_bytes(config, shape)
    cache = options.slots * round_up(most + 1) * each
    decode = options.slots * (12 * shape.vocab + (4 + _size(config)) * shape.heads * most)
    prefill = options.prefill_tokens * 3 * shape.intermediate * _size(config)
    weights = _weights(config, shape)
    packs = not cuda and not config.run.deterministic and _size(config) == 4 and shape.n_parameters >= MIN_PARAMETERS
    if packs and shape.tied:
        weights += 4 * shape.vocab * shape.hidden  # engines/torch/packed.py
    parts = {ENGINE_WEIGHTS: weights, CACHE: cache, WORK: max(decode, prefill)}
    own_process = cuda and config.cluster.name != "local"
    context = CUDA_CONTEXT if own_process else 0
    return EngineMemory(parts=parts, token_bytes=each, wanted=cache, sequence=each * most, context=context)


def _vllm(
    config: Config, options: VllmEngineConfig, shape: ModelShape, device_bytes: int | None, *, cuda: bool
) -> EngineMemory:
    """Work: a round's tokens, each with two of the MLP's products and the residual stream twice, and float32 logits of
    all slots twice. Not traced: vLLM measures its own when it starts.
    """
    most = options.max_tokens or longest_sequence(config)
    each = token_bytes(config, shape)
    tokens = options.prefill_tokens or VLLM_TOKENS
    work = tokens * (2 * shape.intermediate // tensor_parallel(config) + 2 * shape.hidden) * _size(config)
    work += 8 * options.slots * shape.vocab
    weights = _weights(config, shape)
    if options.kv_cache_bytes is not None:
        cache = options.kv_cache_bytes
    elif not cuda:
        cache = VLLM_CPU_CACHE
    elif device_bytes is not None:
        cache = max(0, int(options.gpu_memory_utilization * device_bytes) - weights - work)
    else:
        cache = options.slots * most * each
    return EngineMemory(
        parts={ENGINE_WEIGHTS: weights, CACHE: cache, WORK: work},
        token_bytes=each,
        wanted=options.slots * most * each,
        sequence=most * each,
        sleeps=cuda and config.cluster.colocate,
        context=CUDA_CONTEXT if cuda else 0,
        asleep=WORKSPACES
        + (0 if options.enforce_eager else CUDA_GRAPHS)
        + (NCCL if tensor_parallel(config) > 1 else 0),
    )


def _weights(config: Config, shape: ModelShape) -> int:
    return sharded(shape.parameters, 1, _size(config)) // tensor_parallel(config)


def _size(config: Config) -> int:
    return 2 if config.model.dtype is Dtype.BFLOAT16 else 4
