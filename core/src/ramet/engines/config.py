"""Options of the built-in engines. Imports nothing heavy: `ramet --help` loads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class TorchEngineConfig:
    """The engine `torch`: continuous batching over a static KV cache.

    slots: sequences whose cache is held at once. max_tokens: prompt and response of one sequence; null: what data and
    rollout allow. prefill_tokens: prompt tokens computed between two decode steps at most.
    """

    slots: int = 64
    max_tokens: int | None = None
    prefill_tokens: int = 2048

    def __post_init__(self) -> None:
        if self.slots < 4:
            raise ValueError(f"slots must be at least 4, got {self.slots}")


@dataclass(kw_only=True, slots=True)
class VllmEngineConfig:
    """The engine `vllm`, in this process; it loads the folder `model.path` itself.

    slots: sequences decoded at once. max_tokens: prompt and response of one sequence; null: what data and rollout
    allow. prefill_tokens: tokens of one round at most, prompts and decoding together; null: vLLM's choice. On a CPU
    prompts are computed whole, so it is at least max_tokens there.
    kv_cache_bytes: memory for keys and values; null: 1 GiB on a CPU, and on a GPU what gpu_memory_utilization, a share
    of its memory, leaves. enforce_eager: neither compile nor capture graphs; null: true on a CPU, false on a GPU.
    """

    slots: int = 256
    max_tokens: int | None = None
    prefill_tokens: int | None = None
    kv_cache_bytes: int | None = None
    gpu_memory_utilization: float = 0.5
    enforce_eager: bool | None = None

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"slots must be at least 1, got {self.slots}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(f"gpu_memory_utilization must be over 0 and at most 1, got {self.gpu_memory_utilization}")
