"""Options of the built-in engines. Imports nothing heavy: `ramet --help` loads it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ramet.helpers.openai.options import OpenAIOptions
from ramet.types.option import Resume, option


@dataclass(kw_only=True, slots=True)
class TorchEngineConfig:
    """The engine `torch`: continuous batching over a static KV cache.

    slots: sequences whose cache is held at once. max_tokens: prompt and response of one sequence; null: what data and
    rollout allow. prefill_tokens: prompt tokens computed between two decode steps at most.
    """

    slots: int = option(64, minimum=4, resume=Resume.MEMORY, aka="max_num_seqs")
    max_tokens: int | None = None
    prefill_tokens: int = 2048


@dataclass(kw_only=True, slots=True)
class VllmEngineConfig:
    """The engine `vllm`; it loads the folder `model.path` itself.

    tensor_parallel: devices that one copy of the model is spread over. timeout_s: deadline of a call to vLLM's
    processes, as for new weights. transfer: how new weights reach them with cluster=ray: ipc (they stay on the GPUs
    that engines share with the policy), nccl (broadcast to engines with GPUs of their own) or host (host memory and
    Ray's object store); null: by placement, and host on a CPU.
    slots: sequences decoded at once. max_tokens: prompt and response of one sequence; null: what data and rollout
    allow. prefill_tokens: tokens of one round at most, prompts and decoding together; null: vLLM's choice. On a CPU
    prompts are computed whole, so it is at least max_tokens there.
    kv_cache_bytes: memory for keys and values; null: 1 GiB on a CPU, and on a GPU what gpu_memory_utilization, a share
    of its memory, leaves. enforce_eager: neither compile nor capture graphs; null: true on a CPU, false on a GPU.
    seeds: each request's seed decides its tokens; vLLM then draws row by row, which costs milliseconds a step.
    stream_interval: tokens of a turn that come to the rollouts together. More cost their process less for each token,
    and up to so many less one are sampled after a stop and dropped.
    """

    tensor_parallel: int = option(
        1,
        minimum=1,
        resume=Resume.FAILURES,
        aka="tensor_model_parallel_size tensor_parallel_size vllm_tensor_parallel_size",
    )
    timeout_s: float = option(600.0, above=0, resume=Resume.PATIENCE)
    transfer: str | None = option(None, choices=("host", "nccl", "ipc"))
    slots: int = option(256, minimum=1, resume=Resume.MEMORY, aka="max_num_seqs")
    max_tokens: int | None = None
    prefill_tokens: int | None = None
    kv_cache_bytes: int | None = option(None, resume=Resume.MEMORY)
    gpu_memory_utilization: float = option(
        0.5, above=0, maximum=1, resume=Resume.MEMORY, aka="rollout.gpu_memory_utilization vllm_gpu_memory_utilization"
    )
    enforce_eager: bool | None = None
    seeds: bool = False
    stream_interval: int = option(1, minimum=1)


@dataclass(kw_only=True, slots=True)
class OpenAIEngineConfig:
    """The engine `openai`: servers that speak the OpenAI API, as `vllm serve` does. `model.path` has the tokenizer.

    slots: requests in flight at all servers together. token_ids: send and ask for token ids; false: text, which is not
    always the same tokens. logprobs: ask for the log-probabilities of sampled tokens, for the record. server: where
    they are; its `concurrency` is `slots`, and its `timeout_s` is that of a whole turn, which a busy server takes
    minutes for.
    """

    slots: int = option(256, minimum=1, resume=Resume.MEMORY)
    token_ids: bool = True
    logprobs: bool = False
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
