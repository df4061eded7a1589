"""Options of the built-in engines. Imports nothing heavy: `ramet --help` loads it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ramet.helpers.openai.options import OpenAIOptions
from ramet.types.option import Resume, option

MAX_TOKENS_HELP = "most tokens of one sequence, prompt and response; null: what data and rollout allow"


@dataclass(kw_only=True, slots=True)
class TorchEngineConfig:
    """The engine `torch`: continuous batching over a static KV cache."""

    slots: int = option(
        64, "sequences whose cache is held at once", minimum=4, resume=Resume.MEMORY, aka="max_num_seqs"
    )
    max_tokens: int | None = option(None, MAX_TOKENS_HELP)
    prefill_tokens: int = option(2048, "most prompt tokens that are computed between two decode steps")


@dataclass(kw_only=True, slots=True)
class VllmEngineConfig:
    """The engine `vllm`; it loads the folder `model.path` itself."""

    tensor_parallel: int = option(
        1,
        "GPUs that one copy of the model is spread over",
        minimum=1,
        resume=Resume.FAILURES,
        aka="tensor_model_parallel_size tensor_parallel_size vllm_tensor_parallel_size",
    )
    timeout_s: float = option(
        600.0, "time-out of a call to vLLM's processes, as for new weights, in seconds", above=0, resume=Resume.PATIENCE
    )
    transfer: str | None = option(
        None,
        "how new weights reach the engines with cluster=ray; ipc: they stay on the GPUs that engines share with the "
        "policy; nccl: broadcast to engines with GPUs of their own; host: through host memory; null: by placement, and "
        "host on a CPU",
        choices=("host", "nccl", "ipc"),
    )
    slots: int = option(256, "sequences that are decoded at once", minimum=1, resume=Resume.MEMORY, aka="max_num_seqs")
    max_tokens: int | None = option(None, MAX_TOKENS_HELP)
    prefill_tokens: int | None = option(
        None,
        "most tokens of one round, prompts and decoding together; null: vLLM's choice; on a CPU at least max_tokens, "
        "since prompts are computed at once there",
    )
    kv_cache_bytes: int | None = option(
        None,
        "memory for keys and values, in bytes; null: 1 GiB on a CPU, on a GPU what gpu_memory_utilization leaves",
        resume=Resume.MEMORY,
    )
    gpu_memory_utilization: float = option(
        0.5,
        "share of a GPU's memory that the engine may use",
        above=0,
        maximum=1,
        resume=Resume.MEMORY,
        aka="rollout.gpu_memory_utilization vllm_gpu_memory_utilization",
    )
    enforce_eager: bool | None = option(
        None, "neither compile the model nor capture CUDA graphs; null: true on a CPU, false on a GPU"
    )
    seeds: bool = option(False, "each request's seed decides its tokens; costs milliseconds a step")
    stream_interval: int = option(
        1,
        "tokens of a turn that reach the rollout together; more cost less time per token, and up to so many less one "
        "are sampled after a stop and dropped",
        minimum=1,
    )


@dataclass(kw_only=True, slots=True)
class OpenAIEngineConfig:
    """The engine `openai`: servers that speak the OpenAI API, as `vllm serve` does. `model.path` has the tokenizer.

    `server.concurrency` is `slots`, and `server.timeout_s` is for a complete turn: minutes on a busy server.
    """

    slots: int = option(256, "requests at the same time, at all servers together", minimum=1, resume=Resume.MEMORY)
    token_ids: bool = option(True, "send and receive token ids; false: text, which is not always the same tokens")
    logprobs: bool = option(False, "ask for the log-probabilities of sampled tokens, for the record")
    server: OpenAIOptions = option(
        factory=lambda: OpenAIOptions(timeout_s=600.0),
        resume={
            "timeout_s": Resume.PATIENCE,
            "retries": Resume.PATIENCE,
            "per_s": Resume.FAILURES,
            "max_requests": Resume.FAILURES,
        },
    )

    def server_at(self, urls: list[str]) -> OpenAIOptions:
        """The options of a client of these servers."""
        return replace(self.server, urls=list(urls), concurrency=self.slots)
