"""LoRA (arXiv 2106.09685) through peft: W stays as it is and s * B @ A is trained, with s = alpha / rank = 2.

peft's layers are put into the model, which keeps its class, so that nothing changes for the forward pass and FSDP. The
names show the rest: a linear layer `X` becomes `X.base_layer`, `X.lora_A.default` and `X.lora_B.default`. So merging
needs only a `state_dict`, full or sharded, and an adapter can be merged into a base model that is only on disk.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from ramet.errors import ConfigError, MissingHere
from ramet.hub import HubName, cached_name
from ramet.models.weight_files import WeightFiles
from ramet.policy.distributed.sharding import full_tensor

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel

HOST = torch.device("cpu")
KEY = "policy.lora_rank"
SCALE = 2  # alpha / rank: with it the size of an update does not depend on the rank
PEFT = "base_model.model."  # what peft puts before every name in its files
BASE, FACTOR_A, FACTOR_B = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"
ADAPTER_WEIGHTS = "adapter_model.safetensors"  # as peft names it
FILE_A, FILE_B = ".lora_A.weight", ".lora_B.weight"  # the same in peft's files


def check_lora(key: str = KEY) -> list[str]:
    """The problem that peft is missing, if it is."""
    if importlib.util.find_spec("peft") is not None:
        return []
    problem = f"{key}: needs the package peft (pip install 'ramet[lora]'); without it only 0 is allowed"
    return [MissingHere(problem, missing="peft", unchecked="its version, and whether it knows the model's layers")]


def lora_config(targets: Collection[str], rank: int, base: str | None = None) -> LoraConfig:
    """peft's configuration. `targets` are last parts of layers' names, `base` names the model that it belongs to."""
    from peft import LoraConfig

    return LoraConfig(
        r=rank,
        lora_alpha=SCALE * rank,
        lora_dropout=0.0,
        target_modules=sorted(targets),
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
    )


def add_adapter(model: PreTrainedModel, rank: int, *, seed: int = 0) -> PreTrainedModel:
    """The same model with an adapter on every linear layer but the output head; only it is trained, in float32.

    B is 0, so the model answers as before. A is drawn from `seed`, whatever the state of torch's random number
    generators, so all ranks have the same A. Call it before the model is sharded. Raises `ConfigError` without peft.
    """
    if problems := check_lora():
        raise ConfigError(problems[0])
    from peft import inject_adapter_in_model

    inject_adapter_in_model(lora_config(_linear_layers(model), rank), model)
    _begin_adapter(model, seed)
    return model


def adapted(model: PreTrainedModel, rank: int, *, seed: int = 0) -> PeftModel:
    """The model with the adapter of `add_adapter`, inside peft's model, which `transformers.Trainer` knows: it saves
    and loads only the adapter.
    """
    from peft import PeftModel, get_peft_model

    wrapped = get_peft_model(model, lora_config(_linear_layers(model), rank))
    assert isinstance(wrapped, PeftModel)
    _begin_adapter(model, seed)
    return wrapped


def _linear_layers(model: PreTrainedModel) -> set[str]:
    """Last parts of the names of all linear layers but the output head."""
    linear = (name for name, module in model.base_model.named_modules() if isinstance(module, nn.Linear))
    return {name.rpartition(".")[2] for name in linear}


def _begin_adapter(model: PreTrainedModel, seed: int) -> None:
    """Give the adapter its first values, in float32, and let only it be trained."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in list(model.named_parameters()):
        parameter.requires_grad_(False)
        if name.endswith((FACTOR_A, FACTOR_B)):
            drawn = torch.zeros(parameter.shape)
            if name.endswith(FACTOR_A):
                nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)  # as peft and nn.Linear do
            layer, _, last = name.rpartition(".")
            device = HOST if parameter.is_meta else parameter.device  # only parameters from files may be without values
            setattr(model.get_submodule(layer), last, nn.Parameter(drawn.to(device)))


def merged_weights(model: nn.Module, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
    """Names and full tensors of the plain model's `state_dict`, with the adapters merged; the model stays as it is.

    One tensor is gathered at a time, on the model's device; in `dtype`, to which each rank takes its part before it is
    gathered, or in W's type. Under FSDP all ranks must iterate together. A model without adapters gives its own
    weights.
    """
    yield from merged(model.state_dict(), dtype)


def merged(state: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
    """Yield what `merged_weights` yields from a `state_dict`, which may be gathered already."""
    for name, tensor in state.items():
        if ".lora_" in name:
            continue
        weight = full_tensor(tensor if dtype is None else tensor.to(dtype))
        layer, base, kind = name.rpartition(BASE)
        if base and kind == "weight":
            weight = _merge(weight, full_tensor(state[layer + FACTOR_A]), full_tensor(state[layer + FACTOR_B]))
        yield (f"{layer}.{kind}" if base else name), weight


def merged_shapes(model: nn.Module, dtype: torch.dtype) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    """Names, types and shapes of what `merged_weights` gives, in its order, without gathering anything."""
    state = model.state_dict()
    return [(name.replace(BASE, "."), dtype, tuple(state[name].shape)) for name in state if ".lora_" not in name]


def adapter_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The adapters' A and B, unsharded, under the names of peft's files: all that an engine needs.

    One tensor is gathered at a time. Under FSDP all ranks must iterate together.
    """
    yield from adapters(model.state_dict())


def save_adapter(folder: Path, adapter: Mapping[str, Tensor], path: str, base: HubName | None = None) -> None:
    """Write an adapter's weights and configuration as peft does. Rank and layers are read from the tensors.

    `path`: the folder of the model that it belongs to; `base`: the model's name on the hub, if its folder does not say.
    """
    base = cached_name(path) or base
    factors = {name.removesuffix(FILE_A): tensor for name, tensor in adapter.items() if name.endswith(FILE_A)}
    targets = {layer.rpartition(".")[2] for layer in factors}
    rank = next(iter(factors.values())).shape[0]
    described = lora_config(targets, rank, base=str(Path(path).resolve()) if base is None else base.id)
    described.revision = None if base is None else base.revision
    described.inference_mode = True
    described.save_pretrained(str(folder))
    tensors = {name: tensor.contiguous() for name, tensor in adapter.items()}
    save_file(tensors, folder / ADAPTER_WEIGHTS, {"format": "pt"})


def adapters(state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield what `adapter_weights` yields from a `state_dict` or from a part of one, as in a checkpoint."""
    for name, tensor in state.items():
        if name.endswith((FACTOR_A, FACTOR_B)):
            yield f"{PEFT}{name.removesuffix('default.weight')}weight", full_tensor(tensor)


@dataclass(frozen=True, slots=True)
class AdapterMerger:
    """Merges, in an engine's process, an adapter and the base model's files into full weights, one at a time."""

    base: Path  # a Hugging Face folder with safetensors

    def __call__(self, adapter: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Every weight of the base model's files. Merged ones are float32, the others as in the files.

        Raises `ConfigError` for an adapter of another model.
        """
        factors = {name.removeprefix(PEFT): tensor for name, tensor in adapter}
        for name, tensor in WeightFiles(self.base):
            layer = name.removesuffix(".weight")
            factor_a = factors.pop(layer + FILE_A, None)
            factor_b = factors.pop(layer + FILE_B, None)
            if factor_a is None or factor_b is None:
                yield name, tensor
            else:
                yield name, _merge(tensor.to(factor_a), factor_a, factor_b)
        if factors:
            raise ConfigError(f"{self.base}: has no weight for {len(factors)} of the adapter's, such as {min(factors)}")


def _merge(weight: Tensor, factor_a: Tensor, factor_b: Tensor) -> Tensor:
    """W + s * B @ A, added up in float32."""
    return (weight.float() + SCALE * (factor_b.float() @ factor_a.float())).to(weight.dtype)
