"""The states of all random number generators of a process: a checkpoint holds them, plugins may draw from them."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch


def rng_state() -> dict[str, Any]:
    """States of python's, numpy's and torch's generators, in types that `weights_only` loading allows."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """The inverse of `rng_state`."""
    random.setstate(state["python"])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def seed_generators(key: str) -> None:
    """Begin anew: the same key gives the same numbers."""
    number = int.from_bytes(hashlib.sha256(f"generators:{key}".encode()).digest()[:7], "big")
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)
