"""Linear layers of large models on a CPU, with weights in the layout that oneDNN multiplies by.

For the few rows of a decode step `torch.nn.functional.linear` takes 1.3 to 2 times as long (SmolLM2-135M's layers, 8 to
32 rows, two busy cores with AVX2).
"""

from __future__ import annotations

import logging

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIN_PARAMETERS = 10_000_000  # of a model; smaller ones spend their time elsewhere
ROWS = 16  # that the layout is chosen for; of 1, 16, 32 and 128 the best for 8 to 512 rows, or as good

logger = logging.getLogger(__name__)


class PackedLinear:
    """The output of a linear layer, from a packed copy of its weight."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer
        self.pack(layer.weight)

    def pack(self, weight: Tensor) -> None:
        plain = weight.detach().to("cpu", torch.float32)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(plain, ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.layer.bias, "none", [], "")
        return product


@torch.no_grad()
def pack_linears(model: nn.Module) -> dict[str, PackedLinear]:
    """Let the model's linear layers compute with packed weights.

    Their parameters keep name and shape, without numbers (`meta`), but for one that is an embedding too. Returns the
    layers by the names of their weights; none for small models, other devices and types than float32 on a CPU, and
    where torch cannot do it.
    """
    layers = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    weights = [layer.weight for layer in layers.values()]
    is_small = sum(parameter.numel() for parameter in model.parameters()) < MIN_PARAMETERS
    if is_small or any(weight.device.type != "cpu" or weight.dtype != torch.float32 for weight in weights):
        return {}
    if (problem := _problem(next(iter(layers.values())))) is not None:
        logger.info("the engine torch computes without packed weights: %s", problem)
        return {}
    shared = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    packed = {}
    for name, layer in layers.items():
        packed[f"{name}.weight"] = one = PackedLinear(layer)
        setattr(layer, "forward", one.__call__)  # noqa: B010 (mypy refuses to assign a method)
        if id(layer.weight) not in shared:
            layer.weight = nn.Parameter(layer.weight.to("meta"), requires_grad=False)
    for parameter in model.parameters():
        if not parameter.is_meta:
            parameter.data = parameter.clone()  # a part of the file that was read keeps all of it in memory
    return packed


def _problem(layer: nn.Linear) -> str | None:
    """Why packed weights cannot be used; None if they can. The operations are torch's own, but not public."""
    x = torch.linspace(-1, 1, 4 * layer.in_features).view(4, -1)
    try:
        agrees = torch.allclose(PackedLinear(layer)(x), F.linear(x, layer.weight, layer.bias), rtol=1e-3, atol=1e-4)
    except (RuntimeError, AttributeError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None if agrees else "their products are wrong on this machine"
