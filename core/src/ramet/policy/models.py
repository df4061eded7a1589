"""The models of a policy worker: the one that is trained and its frozen reference."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from ramet.models.loading import load_model
from ramet.policy.forward import check_head
from ramet.policy.packing import Cost, model_cost
from ramet.policy.spec import PolicySpec


def trainable_model(spec: PolicySpec) -> PreTrainedModel:
    """The model in float32. Without dropout: pi must be the same distribution in every pass.

    Raises `ConfigError` for a model that cannot be loaded or trained.
    """
    model = load_model(spec.model)
    model.float()  # type: ignore[no-untyped-call]
    check_head(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0  # type: ignore[assignment]
    if spec.policy.activation_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    return model


def reference_model(spec: PolicySpec) -> PreTrainedModel:
    """The weights that the run starts from, in `model.dtype`, frozen; resuming does not change them."""
    model = load_model(spec.model)
    model.requires_grad_(False)
    return model


def attention_cost(model: PreTrainedModel) -> Cost | None:
    """None for flash attention, which knows where packed sequences end (transformers tells it by the position ids).

    That path needs CUDA and is not run by the tests; what it is given, packed rows, is.
    """
    flash = "flash" in str(model.config._attn_implementation)
    return None if flash else model_cost(model.config.hidden_size, model.device)
