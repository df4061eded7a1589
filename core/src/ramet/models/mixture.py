"""Mixtures of experts, which engines may run and nothing here trains."""

from __future__ import annotations

from transformers import PretrainedConfig

COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")  # how models call their number
MISSING = (
    "loading by shards (each rank would read the complete model, whose experts are one tensor and in files one by "
    "one), experts that are sharded and multiplied in groups (FSDP2 would gather all of a block), LoRA on experts, and "
    "replay of the engine's routing (without it the trainer chooses other experts than the engine did)"
)


def check_dense(described: PretrainedConfig | None) -> list[str]:
    """The problem that a model that is to be trained is a mixture of experts. None: its `config.json` is not known."""
    if described is None or all((getattr(described, name, None) or 0) <= 1 for name in COUNTS):
        return []
    return [
        f"model.path: the model ({described.model_type}) is a mixture of experts, and those are not trained: missing "
        f"are {MISSING}; allowed: dense models. `ramet eval` takes it with engine=vllm "
        "(docs/supported.md#mixtures-of-experts)"
    ]
