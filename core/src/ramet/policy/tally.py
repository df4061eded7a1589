"""What an update reports: means over trained tokens, tails, and counts, added up over micro-batches."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

from ramet.policy.ranks import sum_over_ranks


class Tally:
    """Adds up per-token values and per-step numbers. Nothing is copied off the device before `result`."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = defaultdict(int)
        self._largest: dict[str, Tensor] = {}
        self._values: dict[str, list[Tensor]] = defaultdict(list)

    def tokens(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Mean over masked tokens."""
        chosen = values.detach()[mask].double()
        self._sums[name] = self._sums.get(name, 0.0) + chosen.sum()
        self._counts[name] += len(chosen)

    def largest(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Maximum over masked tokens."""
        chosen = values.detach()[mask]
        if len(chosen):
            top = chosen.max()
            self._largest[name] = torch.maximum(self._largest.get(name, top), top)

    def tails(self, name: str, values: Tensor, mask: Tensor) -> None:
        """1st and 99th percentile and maximum over masked tokens."""
        self._values[name].append(values.detach()[mask])

    def number(self, name: str, value: float) -> None:
        """Mean over calls."""
        self._sums[name] = self._sums.get(name, torch.zeros((), dtype=torch.float64)) + value
        self._counts[name] += 1

    def result(self) -> dict[str, float]:
        """Percentiles and maxima are those of this rank."""
        out = {}
        for name in sorted(self._counts):
            count = sum_over_ranks(self._counts[name])
            total = sum_over_ranks(float(self._sums[name]))
            if count:
                out[name] = total / count
        out.update({name: float(value) for name, value in self._largest.items()})
        for name, pieces in self._values.items():
            everything = torch.cat(pieces).double().cpu().numpy()
            if len(everything):
                low, high = _percentiles(everything)
                out.update({f"{name}_p01": low, f"{name}_p99": high, f"{name}_max": float(everything.max())})
        return out


def _percentiles(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    low, high = np.percentile(values, [1, 99])
    return float(low), float(high)
