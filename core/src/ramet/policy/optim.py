"""AdamW, its learning rate as a pure function of the step, and gradient clipping.

A schedule without state resumes exactly by knowing the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ramet.config.schema import Offload, PolicyConfig, Schedule
from ramet.policy.distributed.sharding import full_tensor
from ramet.policy.host_memory import HostBuffers

BETA1 = 0.9  # of AdamW; for agents only beta2 is tuned
MANY = 10**7  # parameters, for which a step of AdamW takes a time that counts on a CPU


def learning_rate(config: PolicyConfig, step: int, total_steps: int) -> float:
    """The rate of training step `step`, counted from 1. Linear warm-up, then the schedule down to `min_lr_ratio`."""
    if step < config.warmup_steps:
        return config.lr * step / config.warmup_steps
    if config.schedule is Schedule.CONSTANT:
        return config.lr
    span = max(total_steps - config.warmup_steps, 1)
    progress = min(max((step - config.warmup_steps - 1) / span, 0.0), 1.0)
    remaining = 1 - progress if config.schedule is Schedule.LINEAR else 0.5 * (1 + math.cos(math.pi * progress))
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * remaining)


def has_one_kernel(trained: Sequence[Parameter]) -> bool:
    """Whether one kernel does a step of AdamW: on a GPU without copies of the gradients, and on a CPU for many
    parameters, in a seventh of the time.

    It rounds otherwise than torch's default, a tensor at a time, which small models and deterministic runs on the CPU
    keep.
    """
    many = all(p.device.type == "cpu" for p in trained) and sum(p.numel() for p in trained) >= MANY
    return (many and not torch.are_deterministic_algorithms_enabled()) or any(p.is_cuda for p in trained)


def make_optimizer(parameters: Iterable[Parameter], config: PolicyConfig) -> torch.optim.AdamW:
    """AdamW (arXiv 1711.05101) over the parameters that are trained. Its state has their type, float32.

    What `policy.offload` keeps in host memory is stepped by one kernel, too.
    """
    trained = [p for p in parameters if p.requires_grad]
    return torch.optim.AdamW(
        trained,
        fused=True if has_one_kernel(trained) or config.offload is Offload.ALL else None,
        lr=config.lr,
        betas=(BETA1, config.beta2),
        weight_decay=config.weight_decay,
    )


def clip_gradients(parameters: Iterable[Parameter], max_norm: float) -> float:
    """Scale the gradients to at most `max_norm` and return the norm before; it may not be finite.

    Both are over complete gradients, also if a rank has only its part of them.
    """
    listed = list(parameters)
    norm = full_tensor(torch.nn.utils.get_total_norm([p.grad for p in listed if p.grad is not None]))
    torch.nn.utils.clip_grads_with_norm_(listed, max_norm, norm)
    return float(norm)


class OffloadedState:
    """AdamW's moments, in host memory between updates and on the device during one."""

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device, *, pin: bool) -> None:
        self._optimizer = optimizer
        self._device = device
        self._buffers = HostBuffers(pin=pin)

    def to_device(self) -> None:
        """Move the state to the device; tensors that are there stay. Kernels that are started later see the values."""
        for state, name, value in self._moments():
            state[name] = value.to(self._device, non_blocking=True)

    def to_host(self) -> None:
        """The device's memory is free when this returns."""
        moments = self._moments()
        copies = self._buffers.copies({f"{i}": value for i, (_, _, value) in enumerate(moments)})
        for (state, name, _), copy in zip(moments, copies.values(), strict=True):
            state[name] = copy

    def _moments(self) -> Sequence[tuple[dict[str, Any], str, Tensor]]:
        """Return the moments in the order of the parameters. Counts of steps are scalars, and stay with AdamW."""
        state = self._optimizer.state
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        return [
            (state[parameter], name, value)
            for parameter in parameters
            if parameter in state
            for name, value in sorted(state[parameter].items())
            if isinstance(value, Tensor) and value.dim()
        ]
