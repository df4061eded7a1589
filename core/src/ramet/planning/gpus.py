"""Published figures of GPUs, and the shares of them that a plan counts on (docs/plan.md has sources of all)."""

from __future__ import annotations

import re
from dataclasses import dataclass

MIB = 2**20
COMPUTE = 0.40  # of the dense bfloat16 FLOP/s, in matrix products of training and of prompts: an assumption
BANDWIDTH = 0.80  # of the memory's bytes/s, in decoding and in an optimiser step: an assumption
EXCHANGE = 0.70  # of the bytes/s between GPUs: an assumption


@dataclass(frozen=True, slots=True)
class Gpu:
    """Bytes, bytes/s and FLOP/s of one. `link`: to the GPUs of its node, one direction."""

    memory: int
    bandwidth: float
    flops: float
    link: float


GPUS = {
    "A100": Gpu(81920 * MIB, 2.039e12, 312e12, 300e9),
    "H100": Gpu(81559 * MIB, 3.35e12, 989e12, 450e9),
    "H200": Gpu(143771 * MIB, 4.8e12, 989e12, 450e9),
    "B200": Gpu(183359 * MIB, 8.0e12, 2250e12, 900e9),
    "RTX4090": Gpu(24564 * MIB, 1.008e12, 165e12, 32e9),
}
# What CUDA calls them. Other models of a name, such as "NVIDIA H100 PCIe", are slower and have no figures here.
_CALLED = re.compile(r"(?:NVIDIA )?(?:(A100)-SXM4-80GB|(H100) 80GB HBM3|(H200)|(B200)|GeForce (RTX) (4090))")


def gpu_called(name: str) -> str | None:
    """Return the key in `GPUS` of a device by its name in CUDA; None for another one."""
    match = _CALLED.fullmatch(name)
    return "".join(filter(None, match.groups())) if match else None
