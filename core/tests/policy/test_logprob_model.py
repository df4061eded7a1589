"""What the check of the output head accepts, and that it runs nothing of the model itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_utils import AttentionInterface

from ramet.errors import ConfigError
from ramet.policy.logprob_model import check_head

SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}


def model_of(kind: str, **options: Any) -> PreTrainedModel:
    config = AutoConfig.for_model(kind, **SIZES, **options)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def refuse(*_: Any, **__: Any) -> None:
    raise RuntimeError("this attention has no kernel for host memory")


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_a_model_whose_attention_or_weights_are_not_here_is_checked(kind: str) -> None:
    AttentionInterface.register("only_on_cuda", refuse)
    with init_empty_weights(include_buffers=False):
        model = model_of(kind, tie_word_embeddings=kind == "qwen2")
    model.config._attn_implementation = "only_on_cuda"
    before = torch.get_rng_state()
    check_head(model)
    assert torch.equal(torch.get_rng_state(), before) and model.device.type == "meta"
    assert model.config.num_hidden_layers == 3 and model.config._attn_implementation == "only_on_cuda"


@pytest.mark.parametrize(
    ("kind", "options"), [("gemma2", {"final_logit_softcapping": 30.0}), ("cohere", {"logit_scale": 0.5})]
)
def test_a_soft_cap_or_a_scale_after_the_head_is_refused(kind: str, options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"^model.path: \w+ForCausalLM changes its logits after the output head; "):
        check_head(model_of(kind, **options))
