"""Which attention a model is loaded with (`model.attention`), and what each of them needs."""

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
KNOWS_BORDERS = (Attention.FLASH, Attention.VARLEN, Attention.FLEX)  # packed sequences cost as little as each alone


def attention_for(config: ModelConfig, device: torch.device) -> str:
    """The name that transformers is given for a model on this device. Raises `ConfigError`."""
    if config.attention is Attention.AUTO:
        flash = not _missing(Attention.FLASH, device.type) and config.dtype is Dtype.BFLOAT16
        return str(Attention.FLASH if flash else Attention.SDPA)
    if problems := check_attention(config, device=device.type):
        raise ConfigError(problems[0])
    if config.attention is Attention.VARLEN:
        ramet.models.varlen.register()
    if config.attention is Attention.FLEX:
        ramet.models.flex.register()
    return str(config.attention)


def check_attention(config: ModelConfig, *, device: str | None, described: PretrainedConfig | None = None) -> list[str]:
    """What `model.attention` needs and lacks, in one line.

    `device` is the kind that the model will be on; None: one of another machine, which may have what this one lacks.
    `described` is what config.json says of the model.
    """
    missing, unset = _missing_there(config, device), _not_set(config, described)
    if not missing and not unset:
        return []
    wanted = " and ".join([*missing, *unset])
    can = (one for one in Attention if not _lacks(replace(config, attention=one), device, described))
    problem = f"model.attention: {config.attention} needs {wanted}; allowed here: {', '.join(can)}"
    return [problem if unset or config.device == "cpu" else MissingHere(problem, missing="GPUs")]


def _lacks(config: ModelConfig, device: str | None, described: PretrainedConfig | None) -> bool:
    return bool(_missing_there(config, device) or _not_set(config, described))


def _missing_there(config: ModelConfig, device: str | None) -> list[str]:
    return [] if device is None else _missing(config.attention, device)


def _missing(attention: Attention, device: str) -> list[str]:
    """What this machine would have to have."""
    found = [] if device == "cuda" or attention not in KNOWS_BORDERS else [f"a CUDA device instead of {device!r}"]
    if attention is Attention.FLASH and not is_flash_attn_2_available():
        found.append("the package flash-attn")
    if attention is Attention.VARLEN and not has_varlen():
        found.append("a torch with torch.nn.attention.varlen (2.13 has it)")
    if attention is Attention.FLEX and find_spec("triton") is None:
        found.append("the package triton")
    if attention is Attention.FLEX and os.environ.get(COMPILER_OFF) == "1":
        found.append(f"torch's compiler, which {COMPILER_OFF}=1 switches off in this process")
    return found


def _not_set(config: ModelConfig, described: PretrainedConfig | None) -> list[str]:
    """What the configuration, or the model itself, would have to be."""
    found = []
    if config.attention in (Attention.FLASH, Attention.VARLEN) and config.dtype is not Dtype.BFLOAT16:
        found.append(f"model.dtype=bfloat16 instead of {config.dtype}")
    if config.attention is Attention.FLEX and described is not None and _head(described) < SMALLEST_HEAD:
        found.append(f"attention heads of at least {SMALLEST_HEAD} numbers instead of the model's {_head(described)}")
    return found


def _head(described: PretrainedConfig) -> int:
    """Size of an attention head."""
    own = getattr(described, "head_dim", None)
    return int(own or described.hidden_size // described.num_attention_heads)
