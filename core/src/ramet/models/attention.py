"""The attention that a model is loaded with (`model.attention`), and what each of them needs."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec

import torch
from transformers import PretrainedConfig
from transformers.utils.import_utils import is_flash_attn_2_available

import ramet.models.flex
import ramet.models.varlen
from ramet.config.schema import Attention, Dtype, ModelConfig
from ramet.errors import ConfigError, MissingHere
from ramet.models.flex import SMALLEST_HEAD
from ramet.models.varlen import has_varlen

COMPILER_OFF = "TORCHDYNAMO_DISABLE"
MODELS = ("llama", "qwen2", "qwen3")  # whose attention is only softmax(Q K) V; others cap scores or add sinks
VARLEN_CAPABILITY = (8, 0)  # of the oldest GPUs that torch's kernel is for (Ampere)
KNOWS_BORDERS = (Attention.FLASH, Attention.VARLEN, Attention.FLEX)  # packed sequences cost as little as each by itself


def attention_for(config: ModelConfig, device: torch.device, described: PretrainedConfig) -> str:
    """The name that transformers is given for a model on this device. Raises `ConfigError`."""
    if problems := check_attention(config, device=device.type):
        raise ConfigError(problems[0])
    attention = chosen_attention(config, device.type, plain=is_plain(described))
    if attention is Attention.VARLEN:
        ramet.models.varlen.register()
    if attention is Attention.FLEX:
        ramet.models.flex.register()
    return str(attention)


def chosen_attention(config: ModelConfig, device: str, *, plain: bool) -> Attention:
    """Meaning of `auto` on this kind of device: on CUDA in bfloat16 flash-attn, or without it `varlen`; otherwise SDPA.

    `varlen` only where the model `is_plain`, and the GPU, if one is visible, is an Ampere or later.
    """
    if config.attention is not Attention.AUTO:
        return config.attention
    if device == "cuda" and config.dtype is Dtype.BFLOAT16:
        if not _missing(Attention.FLASH, device):
            return Attention.FLASH
        if plain and not _missing(Attention.VARLEN, device) and not _is_old(torch.device(device)):
            return Attention.VARLEN
    return Attention.SDPA


def is_plain(described: PretrainedConfig) -> bool:
    """Whether `varlen` is known to compute this model's attention: one of `MODELS`, by transformers' own code, without
    sliding windows.
    """
    layers = set(getattr(described, "layer_types", None) or ()) - {"full_attention"}
    return described.model_type in MODELS and not layers and not getattr(described, "auto_map", None)


def check_attention(config: ModelConfig, *, device: str | None, described: PretrainedConfig | None = None) -> list[str]:
    """Missing requirements of `model.attention`, in one line.

    `device` is the kind that the model will be on; None: one of another machine, which may have what this one lacks.
    `described` is what config.json says of the model.
    """
    missing, unset = _missing_there(config, device), _not_set(config, described)
    if not missing and not unset:
        return []
    wanted = " and ".join([*missing, *unset])
    can = (kind for kind in Attention if not _lacks(replace(config, attention=kind), device, described))
    problem = f"model.attention: {config.attention} needs {wanted}; allowed here: {', '.join(can)}"
    return [problem if unset or config.device == "cpu" else MissingHere(problem, missing="GPUs")]


def _lacks(config: ModelConfig, device: str | None, described: PretrainedConfig | None) -> bool:
    return bool(_missing_there(config, device) or _not_set(config, described))


def _missing_there(config: ModelConfig, device: str | None) -> list[str]:
    return [] if device is None else _missing(config.attention, device)


def _missing(attention: Attention, device: str) -> list[str]:
    """Missing parts of this machine."""
    lacking = [] if device == "cuda" or attention not in KNOWS_BORDERS else [f"a CUDA device instead of {device!r}"]
    if attention is Attention.FLASH and not is_flash_attn_2_available():
        lacking.append("the package flash-attn")
    if attention is Attention.VARLEN and not has_varlen():
        lacking.append("a torch with torch.nn.attention.varlen (2.11 has it)")
    if attention is Attention.FLEX and find_spec("triton") is None:
        lacking.append("the package triton")
    if attention is Attention.FLEX and os.environ.get(COMPILER_OFF) == "1":
        lacking.append(f"torch's compiler, which {COMPILER_OFF}=1 switches off in this process")
    return lacking


def _is_old(device: torch.device) -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability(device) < VARLEN_CAPABILITY


def _not_set(config: ModelConfig, described: PretrainedConfig | None) -> list[str]:
    """Conflicts with the configuration, or with the model itself."""
    lacking = []
    if config.attention in (Attention.FLASH, Attention.VARLEN) and config.dtype is not Dtype.BFLOAT16:
        lacking.append(f"model.dtype=bfloat16 instead of {config.dtype}")
    if config.attention is Attention.FLEX and described is not None and _head(described) < SMALLEST_HEAD:
        lacking.append(f"attention heads of at least {SMALLEST_HEAD} numbers instead of the model's {_head(described)}")
    return lacking


def _head(described: PretrainedConfig) -> int:
    """Size of an attention head."""
    head_dim = getattr(described, "head_dim", None)
    return int(head_dim or described.hidden_size // described.num_attention_heads)
