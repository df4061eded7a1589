"""New weights, copied in place and only as a whole: everything is checked before the first copy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def check_weights(model: nn.Module, weights: Sequence[tuple[str, Tensor]]) -> None:
    """Raise `ValueError` for unknown names, wrong shapes and missing parameters. `model` may be on the meta device.

    A parameter with several names (a tied output head) needs to be given by one of them.
    """
    targets = model.state_dict(keep_vars=True)
    problems = [problem for name, new in weights if (problem := _problem(name, new, targets.get(name)))]
    given = {id(targets[name]) for name, _ in weights if name in targets}
    problems += [f"{name} is missing" for name, old in targets.items() if id(old) not in given]
    if problems:
        raise ValueError(f"weights do not fit the model: {'; '.join(problems[:5])} ({len(problems)} problems in all)")


@torch.no_grad()
def copy_weights(model: nn.Module, weights: Sequence[tuple[str, Tensor]]) -> None:
    """Copy named tensors into the model. Raises `ValueError`, and changes nothing, if they do not fit."""
    check_weights(model, weights)
    targets = model.state_dict(keep_vars=True)
    for name, new in weights:
        targets[name].copy_(new)


def _problem(name: str, new: Tensor, old: Tensor | None) -> str | None:
    if old is None:
        return f"{name} is not a parameter of it"
    if old.shape != new.shape:
        return f"{name} has the shape {tuple(new.shape)} instead of {tuple(old.shape)}"
    return None
