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
    """Adds up per-token values and per-step numbers. What is on the device stays there until `result`: nothing waits.

    Tokens are given by their positions, `[n]` int64 on the axis `[T]` of their values. A mask's tokens would have to be
    counted first, for which the host waits until the device has computed everything before.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._numbers: dict[str, float] = defaultdict(float)  # sums of what the host knows
        self._counts: dict[str, int] = defaultdict(int)
        self._largest: dict[str, Tensor] = {}
        self._values: dict[str, list[Tensor]] = defaultdict(list)
        self._squares: dict[str, Tensor] = {}

    def token_mean(self, name: str, values: Tensor, tokens: Tensor) -> None:
        """The mean over these tokens."""
        self._sums[name] = self._sums.get(name, 0.0) + _of(values, tokens).double().sum()
        self._counts[name] += len(tokens)

    def effective_share(self, name: str, weights: Tensor, tokens: Tensor) -> None:
        """The effective sample size of weighted tokens as a share of them, (sum w)^2 / (n sum w^2); 1 if all weigh the
        same, 0 if all weigh nothing.
        """
        self.token_mean(name, weights, tokens)
        squares = torch.linalg.vector_norm(_of(weights, tokens).double()) ** 2
        self._squares[name] = self._squares.get(name, 0.0) + squares

    def token_max(self, name: str, values: Tensor, tokens: Tensor) -> None:
        """The maximum over these tokens."""
        if len(tokens):
            top = _of(values, tokens).max()
            self._largest[name] = torch.maximum(self._largest.get(name, top), top)

    def token_percentiles(self, name: str, values: Tensor, tokens: Tensor) -> None:
        """1st and 99th percentile and maximum over these tokens, as `NAME_p01`, `NAME_p99`, `NAME_max`."""
        self._values[name].append(_of(values, tokens))

    def mean(self, name: str, value: float) -> None:
        """The mean over calls."""
        self._numbers[name] += value
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
            sums=_on_host(self._sums) | self._numbers,
            counts=dict(self._counts),
            largest=_on_host(self._largest),
            values={name: torch.cat(pieces).double().cpu().numpy() for name, pieces in self._values.items()},
            squares=_on_host(self._squares),
        )


def _of(values: Tensor, tokens: Tensor) -> Tensor:
    return values.detach().index_select(0, tokens)


def _on_host(named: Mapping[str, Tensor]) -> dict[str, float]:
    """Copy all numbers at once, since each copy waits for the device."""
    numbers: list[float] = torch.stack([value.double() for value in named.values()]).tolist() if named else []
    return dict(zip(named, numbers, strict=True))
