"""Metrics of an update: means, maxima, percentiles and effective sample sizes over trained tokens, over all
micro-batches and ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramet.policy.distributed.ranks import gather_on_first


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMetrics:
    """The sums of one rank, as they are sent to rank 0."""

    sums: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    largest: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    squares: Mapping[str, float] = field(default_factory=dict)  # of the values in `sums` and `counts` by the same name


class MetricAccumulator:
    """Adds up per-token values and per-step numbers, which stay on the device until `result`.

    Choosing the tokens of a mask waits for the device, which must know their number. Sums over all positions with zeros
    between them would not, and differ in their last bits.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = defaultdict(int)
        self._largest: dict[str, Tensor] = {}
        self._values: dict[str, list[Tensor]] = defaultdict(list)
        self._squares: dict[str, Tensor] = {}

    def token_mean(self, name: str, values: Tensor, mask: Tensor) -> None:
        """The mean over the tokens of the mask; `values` and `mask` in any one shape."""
        masked = values.detach()[mask].double()
        self._sums[name] = self._sums.get(name, 0.0) + masked.sum()
        self._counts[name] += len(masked)

    def effective_share(self, name: str, weights: Tensor, mask: Tensor) -> None:
        """The effective sample size of weighted tokens as a share of them, (sum w)^2 / (n sum w^2); 1 if all weigh the
        same, 0 if all weigh nothing.
        """
        self.token_mean(name, weights, mask)
        squares = torch.linalg.vector_norm(weights.detach()[mask].double()) ** 2
        self._squares[name] = self._squares.get(name, 0.0) + squares

    def token_max(self, name: str, values: Tensor, mask: Tensor) -> None:
        """The maximum over the tokens of the mask."""
        masked = values.detach()[mask]
        if len(masked):
            top = masked.max()
            self._largest[name] = torch.maximum(self._largest.get(name, top), top)

    def token_percentiles(self, name: str, values: Tensor, mask: Tensor) -> None:
        """1st and 99th percentile and maximum over the tokens of the mask, as `NAME_p01`, `NAME_p99`, `NAME_max`."""
        self._values[name].append(values.detach()[mask])

    def mean(self, name: str, value: float) -> None:
        """The mean over calls."""
        self._sums[name] = self._sums.get(name, torch.zeros((), dtype=torch.float64)) + value
        self._counts[name] += 1

    def result(self, *, include: bool = True) -> dict[str, float]:
        """Return all ranks' metrics on rank 0; empty on others. `include` False: another rank had the same tokens."""
        parts = gather_on_first(self._own() if include else RankMetrics())
        if parts is None:
            return {}
        out = {}
        for name in sorted({name for part in parts for name in part.counts}):
            count = sum(part.counts.get(name, 0) for part in parts)
            if count:
                total = sum(part.sums.get(name, 0.0) for part in parts)
                squares = [part.squares[name] for part in parts if name in part.squares]
                out[name] = total / count
                if squares:  # an effective share; 0 if all weigh nothing
                    out[name] = total**2 / (count * sum(squares)) if sum(squares) else 0.0
        for name in sorted({name for part in parts for name in part.largest}):
            out[name] = max(part.largest[name] for part in parts if name in part.largest)
        for name in sorted({name for part in parts for name in part.values}):
            everything = np.concatenate([part.values[name] for part in parts if name in part.values])
            if len(everything):
                low, high = np.percentile(everything, [1, 99])
                top = everything.max()
                out |= {f"{name}_p01": float(low), f"{name}_p99": float(high), f"{name}_max": float(top)}
        return out

    def _own(self) -> RankMetrics:
        return RankMetrics(
            sums={name: float(value) for name, value in self._sums.items()},
            counts=dict(self._counts),
            largest={name: float(value) for name, value in self._largest.items()},
            values={name: torch.cat(pieces).double().cpu().numpy() for name, pieces in self._values.items()},
            squares={name: float(value) for name, value in self._squares.items()},
        )
