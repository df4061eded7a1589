"""A model made of an architecture (a folder's config.json) and tensors from elsewhere; nothing may be left over."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from ramet.config.schema import Attention, ModelConfig
from ramet.errors import ConfigError, raise_all
from ramet.models.loading import load_generation_config, resolve_device

SHOWN = 3  # names in an error


def build_model(config: ModelConfig, tensors: Mapping[str, Tensor], where: str) -> PreTrainedModel:
    """The causal language model of `config.path` in float32 with these weights; its own weights are not read.

    `where` names the tensors in errors. Raises `ConfigErrors` for tensors that do not fit.
    """
    model = _architecture(config)
    raise_all(check_fit(model, tensors, where, config.path))
    with torch.no_grad():
        for name, parameter in model.state_dict().items():
            if name in tensors:
                parameter.copy_(tensors[name])
    model.generation_config = load_generation_config(config) or model.generation_config
    return model.to(resolve_device(config)).eval()  # type: ignore[arg-type,no-any-return]


def check_fit(model: PreTrainedModel, tensors: Mapping[str, Tensor], where: str, folder: str) -> list[str]:
    """Missing and unknown names, other shapes, tied weights that differ."""
    state = model.state_dict(keep_vars=True)
    tied: dict[int, list[str]] = {}  # names of one and the same tensor
    for name, tensor in state.items():
        tied.setdefault(id(tensor), []).append(name)
    missing = [names[0] for names in tied.values() if not any(name in tensors for name in names)]
    problems = []
    if missing:
        problems.append(f"{where}: {len(missing)} weights of the model in {folder} are missing: {_some(missing)}")
    if unknown := sorted(tensors.keys() - state.keys()):
        problems.append(f"{where}: {len(unknown)} weights are unknown to the model in {folder}: {_some(unknown)}")
    shapes = [
        f"{name} is {list(tensors[name].shape)}, must be {list(tensor.shape)}"
        for name, tensor in state.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    if shapes:
        problems.append(f"{where}: {len(shapes)} shapes do not fit {folder}/config.json: {_some(shapes)}")
    for names in tied.values():
        first, *others = [tensors[name] for name in names if name in tensors] or [torch.empty(0)]
        if not all(torch.equal(first, other) for other in others):
            problems.append(f"{where}: {folder}/config.json ties {' and '.join(names)}, but their values differ")
    return problems


def _architecture(config: ModelConfig) -> PreTrainedModel:
    """Flash attention has no float32 kernels, and both sides of the comparison must compute alike."""
    attention = Attention.EAGER if config.attention is Attention.EAGER else Attention.SDPA
    try:
        described = AutoConfig.from_pretrained(
            config.path, local_files_only=True, trust_remote_code=config.trust_remote_code
        )
        with no_init_weights():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                described,
                dtype=torch.float32,
                attn_implementation=str(attention),
                trust_remote_code=config.trust_remote_code,
            )
        model.tie_weights()  # left out together with the initialisation
    except (OSError, ValueError, KeyError, ImportError) as error:
        if "trust_remote_code" in str(error):
            raise ConfigError(
                f"{config.path} brings Python code of its own; read that, and give --trust-remote-code to let it run"
            ) from error
        raise ConfigError(f"{config.path}/config.json describes no causal language model: {error}") from error
    return model


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
