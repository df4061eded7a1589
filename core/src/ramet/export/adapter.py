"""An adapter alone: a small folder that `peft.PeftModel.from_pretrained(base, folder)` loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from ramet.config.schema import ModelConfig
from ramet.models.loading import load_model, load_tokenizer
from ramet.policy.lora import FILE_A, check_lora, lora_config

WEIGHTS = "adapter_model.safetensors"


def check_adapter(adapter: Mapping[str, Tensor], where: Path) -> list[str]:
    """Why there is no adapter to write."""
    if not adapter:
        return [f"--adapter: {where} holds whole weights, as runs with policy.lora_rank=0 do; leave --adapter out"]
    return check_lora()


def write_adapter(folder: Path, adapter: Mapping[str, Tensor], config: ModelConfig) -> None:
    """Weights under peft's names, configuration and tokenizer. The rank and the layers are read from the tensors."""
    factors = {name.removesuffix(FILE_A): tensor for name, tensor in adapter.items() if name.endswith(FILE_A)}
    targets = {layer.rpartition(".")[2] for layer in factors}
    rank = next(iter(factors.values())).shape[0]
    described = lora_config(targets, rank, base=str(Path(config.path).resolve()))
    described.inference_mode = True
    described.save_pretrained(str(folder))
    save_file({name: tensor.contiguous() for name, tensor in adapter.items()}, folder / WEIGHTS, {"format": "pt"})
    load_tokenizer(config).save_pretrained(folder)


def load_adapted(config: ModelConfig, folder: Path) -> PreTrainedModel:
    """The base model of `config` with the adapter in `folder`, as peft puts them together."""
    from peft import PeftModel

    adapted: Any = PeftModel.from_pretrained(load_model(config), folder)
    loaded: PreTrainedModel = adapted.eval().get_base_model()
    return loaded
