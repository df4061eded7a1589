"""Configurations of the reference's runs, shapes of published models, and memory traced without a byte of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from transformers import AutoConfig, PretrainedConfig

from ramet.config.schema import (
    ClusterConfig,
    ComponentConfig,
    Config,
    DataConfig,
    Dtype,
    ModelConfig,
    PolicyConfig,
    RolloutConfig,
    TrainConfig,
)
from ramet.engines.config import VllmEngineConfig
from ramet.planning.memory import Inputs
from ramet.planning.model_shape import shape_of
from ramet.planning.placement import Machine

GIB = 2**30
# Facts of the published models' config.json.
MODELS: dict[str, dict[str, Any]] = {
    "qwen2.5-1.5b": {
        "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960,
        "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
    },
    "qwen3-14b": {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 5120, "intermediate_size": 17408, "head_dim": 128,
        "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 8, "tie_word_embeddings": False,
    },
}  # fmt: skip


@pytest.fixture(scope="session")
def model_config() -> Callable[..., PretrainedConfig]:
    def build(name: str, **changes: Any) -> PretrainedConfig:
        facts = {**MODELS[name], **changes}
        config: PretrainedConfig = AutoConfig.for_model(facts.pop("model_type"), max_position_embeddings=32768, **facts)
        return config

    return build


@pytest.fixture(scope="session")
def make_inputs(model_config: Callable[..., PretrainedConfig]) -> Callable[..., Inputs]:
    """A run of the reference (reference/arpo.md 9.3) on one node of 8 x 80 GiB; the last arguments change it."""

    def build(
        model: str = "qwen2.5-7b",
        *,
        prompt: int = 1536,
        response: int = 4096,
        tasks: int = 128,
        group: int = 16,
        share: float = 0.7,
        dtype: Dtype = Dtype.BFLOAT16,
        machine: Machine | None = None,
        shape: dict[str, Any] | None = None,
        policy: dict[str, Any] | None = None,
        cluster: dict[str, Any] | None = None,
        engine: ComponentConfig | None = None,
        train: dict[str, Any] | None = None,
    ) -> Inputs:
        vllm = ComponentConfig(name="vllm", params=VllmEngineConfig(slots=1024, gpu_memory_utilization=share))
        places = {"name": "ray", "policy_workers": 8, "rollout_workers": 8, "colocate": True}
        updates = {"activation_checkpointing": True, "max_microbatch_tokens": 2 * (prompt + response)}
        config = Config(
            model=ModelConfig(path="model", dtype=dtype),
            data=DataConfig(max_prompt_tokens=prompt),
            rollout=RolloutConfig(group_size=group, max_response_tokens=response),
            engine=engine or vllm,
            train=TrainConfig(**{"tasks_per_step": tasks, "minibatches": 8, **(train or {})}),
            policy=PolicyConfig(**{**updates, **(policy or {})}),
            cluster=ClusterConfig(**{**places, **(cluster or {})}),
        )
        return Inputs(
            config=config,
            shape=shape_of(model_config(model, **(shape or {}))),
            machine=machine or Machine(cuda=True, devices=8, device_bytes=80 * GIB),
        )

    return build
