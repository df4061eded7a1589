"""The clipped value loss of PPO: a critic does not run away from its values before the update.

    L = max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2)

PPO's paper (arXiv 1707.06347) has only the square (eq. 9); the clipped form came with its implementations. Without the
usual 1/2, as in the released code: the critic has a separate optimiser, so its loss is added to no other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLoss:
    per_token: Tensor  # with gradient
    clipped: Tensor  # float32, 1 where the clipped error is the larger one, which gives no gradient


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> ValueLoss:
    """Per token, in any one shape. `values` with gradient; `clip` is the c of the module's formula."""
    free = (values - returns) ** 2
    clipped = (values.clamp(old_values - clip, old_values + clip) - returns) ** 2
    return ValueLoss(per_token=torch.maximum(free, clipped), clipped=(clipped > free).float())
